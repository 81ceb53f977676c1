"""The front of a network: each rank of a replica computes it for its share of the rows, and all gather the results.

Shares have equal sizes, as collectives require: if the rows do not suffice, they are padded with the last row, whose
results are dropped.
"""

from typing import Any, Protocol

import torch
from torch import nn

__all__ = ["Gatherers", "RowShares"]


class Gatherers(Protocol):
    """The ranks that share a replica."""

    @property
    def rank(self) -> int:
        """The index of this rank among them."""

    def all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """The tensors of all ranks, by rank."""

    def scatter_sum(self, own: torch.Tensor, whole: torch.Tensor) -> None:
        """Reduce-scatter: overwrite ``own`` with this rank's part of the sum of ``whole`` over ranks."""


class RowShares:
    """Selects this rank's rows of the batch with which a network is called."""

    def __init__(self, ranks: Gatherers, count: int) -> None:
        self._ranks, self._count = ranks, count
        self._rows = 0
        """Rows of the batch."""

    def own(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """A forward pre-hook that replaces the network's inputs by this rank's rows."""
        self._rows = len([*args, *kwargs.values()][0])
        return tuple(map(self._of, args)), {name: self._of(each) for name, each in kwargs.items()}

    def _of(self, tensor: torch.Tensor) -> torch.Tensor:
        share = -(-self._rows // self._count)
        rows = torch.arange(self._ranks.rank * share, (self._ranks.rank + 1) * share, device=tensor.device)
        return tensor[rows.clamp(max=self._rows - 1)]

    def gather(self, values: torch.Tensor) -> torch.Tensor:
        """The values of all rows, from those of this rank's rows."""
        gathered: torch.Tensor = _Gather.apply(values, self._ranks, self._count, self._rows)  # type: ignore[no-untyped-call]
        return gathered


class _Gather(torch.autograd.Function):
    """Gathers the values of all rows; the gradient is the sum over ranks, times their number.

    Gradients of the front are averaged over all ranks of the run, although those of a replica have to be added up: the
    factor makes up for it.
    """

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, ranks: Gatherers, count: int, rows: int) -> torch.Tensor:
        ctx.ranks, ctx.count = ranks, count
        return torch.cat(ranks.all_gather(values))[:rows]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (gradient,) = gradients
        rows = len(gradient)
        share = -(-rows // ctx.count)
        whole = gradient.new_zeros(share * ctx.count, *gradient.shape[1:])  # padding has a gradient of zero
        whole[:rows] = gradient
        own = torch.empty_like(whole[:share])
        ctx.ranks.scatter_sum(own, whole)
        return own.mul_(ctx.count), None, None, None
