"""The front of a network: each rank of a replica computes it for its share of the rows, and gives that to the others.

Shares are of one size, as exchanges want them: where rows do not suffice, ranks compute the last one once more, and
leave it out.
"""

from typing import Any, Protocol

import torch
from torch import nn

__all__ = ["Gatherers", "RowShares"]


class Gatherers(Protocol):
    """Those that have one replica together."""

    @property
    def rank(self) -> int:
        """Which of them this one is."""

    def all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """The tensors of all ranks, by rank."""

    def scatter_sum(self, own: torch.Tensor, whole: torch.Tensor) -> None:
        """Overwrite a tensor by this rank's part of the sum of all ranks' tensors, which are as many times larger."""


class RowShares:
    """Which rows of the batch that a network is called with are this rank's."""

    def __init__(self, ranks: Gatherers, count: int) -> None:
        self._ranks, self._count = ranks, count
        self._rows = 0
        """Of the batch."""

    def own(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """A hook before the network is called: let it have this rank's rows of its inputs."""
        self._rows = len([*args, *kwargs.values()][0])
        return tuple(map(self._of, args)), {name: self._of(each) for name, each in kwargs.items()}

    def _of(self, tensor: torch.Tensor) -> torch.Tensor:
        share = -(-self._rows // self._count)
        rows = torch.arange(self._ranks.rank * share, (self._ranks.rank + 1) * share, device=tensor.device)
        return tensor[rows.clamp(max=self._rows - 1)]

    def gather(self, values: torch.Tensor) -> torch.Tensor:
        """The values of all rows, from those of this rank's."""
        gathered: torch.Tensor = _Gather.apply(values, self._ranks, self._count, self._rows)  # type: ignore[no-untyped-call]
        return gathered


class _Gather(torch.autograd.Function):
    """The values of all rows; the gradient is the sum of all ranks', once more for each of them.

    Others average gradients over all ranks, and the ranks of a replica add up what they have found of the front's.
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
        whole = gradient.new_zeros(share * ctx.count, *gradient.shape[1:])  # nothing comes of rows that are left out
        whole[:rows] = gradient
        own = torch.empty_like(whole[:share])
        ctx.ranks.scatter_sum(own, whole)
        return own.mul_(ctx.count), None, None, None
