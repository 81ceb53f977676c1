"""The places where values enter and leave a block that several ranks compute together.

In a graph traced by :func:`torch.export.export`, these places are the operations ``sparkdl::enter`` and
``sparkdl::leave``. The code that runs the graph replaces them by exchanges between its ranks (:func:`exchange_of`); by
themselves they only copy.
"""

from typing import Any, Protocol

import torch
from torch import fx, nn
from typing_extensions import override

from sparkdl.layouts.row_shares import Gatherers, RowShares

__all__ = ["Entrance", "RanksOfReplica", "enter", "exchange_of", "is_entered", "is_left", "leave"]


class RanksOfReplica(Gatherers, Protocol):
    """The ranks that compute blocks together."""

    def all_reduce(self, tensor: torch.Tensor, *, op: Any = "mean") -> torch.Tensor:
        """The sum of all ranks' tensors, for ``op="sum"``."""


def enter(values: torch.Tensor, ranks: RanksOfReplica) -> torch.Tensor:
    """Return the same values; the gradient is the sum of the gradients of all ranks."""
    return _enter(values) if torch.compiler.is_compiling() else _Enter.between(ranks, values)


def leave(values: torch.Tensor, ranks: RanksOfReplica) -> torch.Tensor:
    """Return the sum of the values of all ranks; each rank has the same gradient."""
    return _leave(values) if torch.compiler.is_compiling() else _Leave.between(ranks, values)


def is_entered(node: fx.Node) -> bool:
    """Whether an operation of a graph is a place where values enter a block."""
    return node.target is torch.ops.sparkdl.enter.default


def is_left(node: fx.Node) -> bool:
    """Whether an operation of a graph is a place where values leave a block."""
    return node.target is torch.ops.sparkdl.leave.default


def exchange_of(node: fx.Node, ranks: RanksOfReplica) -> nn.Module | None:
    """A module for an operation that these ranks compute together; None if each rank computes it by itself."""
    if is_entered(node):
        return _Between(_Enter, ranks)
    return _Between(_Leave, ranks) if is_left(node) else None


class Entrance:
    """The entrance of a block. If several layers take the same values, their gradient is summed over ranks only once.

    Behind the front, it gathers the values of all rows.
    """

    def __init__(self, ranks: RanksOfReplica, shares: RowShares | None) -> None:
        self._ranks, self._shares = ranks, shares
        self._last: tuple[torch.Tensor, torch.Tensor] | None = None
        """The values of the last call, and what layers take instead."""

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        """Return what layers take instead of ``values``."""
        if self._last is None or self._last[0] is not values:
            entered = self._shares.gather(values) if self._shares else enter(values, self._ranks)
            self._last = values, entered
        return self._last[1]

    def clear(self) -> None:
        """Forget the values of the last call, after all layers of the block have taken them."""
        self._last = None


class _Exchange(torch.autograd.Function):
    @classmethod
    def between(cls, ranks: RanksOfReplica, values: torch.Tensor) -> torch.Tensor:
        """Apply the exchange to values."""
        exchanged: torch.Tensor = cls.apply(values, ranks)  # type: ignore[no-untyped-call]
        return exchanged


class _Enter(_Exchange):
    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, ranks: RanksOfReplica) -> torch.Tensor:
        ctx.ranks = ranks
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.ranks.all_reduce(gradients[0], op="sum"), None


class _Leave(_Exchange):
    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, ranks: RanksOfReplica) -> torch.Tensor:
        return ranks.all_reduce(values, op="sum")

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0], None


class _Between(nn.Module):
    """An exchange as a module of a graph."""

    def __init__(self, exchange: type[_Exchange], ranks: RanksOfReplica) -> None:
        super().__init__()
        self._exchange, self._ranks = exchange, ranks

    @override
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self._exchange.between(self._ranks, values)


@torch.library.custom_op("sparkdl::enter", mutates_args=())
def _enter(values: torch.Tensor) -> torch.Tensor:
    return values.clone()


@torch.library.custom_op("sparkdl::leave", mutates_args=())
def _leave(values: torch.Tensor) -> torch.Tensor:
    return values.clone()


for _operation in (_enter, _leave):
    _operation.register_fake(torch.empty_like)
