"""The common part of strategies in which each rank keeps a part of a model."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import torch
from torch import nn
from torch.optim import Optimizer

from sparkdl.layouts import ModelPart, Parting, fill_with_moments

__all__ = ["CONSENSUS", "KeepsPart", "OwnPart", "SharedPart"]

CONSENSUS = "consensus"
"""The key, in a rank's own state, of those weights of its part that replicas agree on, where that is not their mean."""


class OwnPart(Protocol):
    """The part of a network that a rank keeps. Runs on ranks."""

    @property
    def parting(self) -> Parting:
        """How the model is split over ranks."""

    @property
    def rank(self) -> int:
        """The index of this rank's part."""

    def weights(self) -> dict[str, torch.Tensor]:
        """By name, the part's tensors and those that all ranks have whole, not copied."""

    def moments(self, optimizer: Optimizer) -> dict[str, Any]:
        """By name, the optimizer's state of the part, not copied."""

    def put(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Overwrite the tensors of :meth:`weights`, or some of them."""

    def put_moments(self, optimizer: Optimizer, moments: Mapping[str, Any]) -> None:
        """Overwrite the optimizer's state of :meth:`moments`."""


class SharedPart(OwnPart, Protocol):
    """A rank's part of a replica that several ranks share. Runs on ranks."""

    model: nn.Module
    """Has the part's parameters and returns the whole network's outputs. All ranks of a replica call it together."""

    @property
    def front(self) -> Sequence[str]:
        """The parameters whose gradients have to be averaged over all ranks of the run: see :class:`TensorParallel`."""

    def state(self) -> dict[str, Any]:
        """A description of the parts for a checkpoint, as plain values."""

    def clip_gradients(self, largest: float) -> None:
        """Scale gradients down if their norm over all parts is larger."""


class KeepsPart:
    """:class:`~sparkdl.training.strategies.strategy.Sharded` for ranks that hold one part each, from ``wrap`` on."""

    replicas_differ: ClassVar[bool] = True
    """A checkpoint has to hold the part of each rank."""
    _part: OwnPart
    optimizer: Optimizer

    @property
    def sharded(self) -> "KeepsPart":
        """See :class:`~sparkdl.training.strategies.strategy.Strategy`."""
        return self

    def weights(self) -> dict[str, torch.Tensor]:
        """See :class:`Sharded`."""
        return self._part.weights()

    def moments(self) -> dict[str, Any]:
        """See :class:`Sharded`."""
        return self._part.moments(self.optimizer)

    def put(self, weights: Mapping[str, torch.Tensor], moments: Mapping[str, Any]) -> None:
        """See :class:`Sharded`."""
        self._part.put(weights)
        self._part.put_moments(self.optimizer, moments)

    def adopt(self, pieces: Iterable[ModelPart]) -> None:
        """See :class:`Sharded`."""
        parting = self._part.parting
        weights = {name: value for name, value in self.weights().items() if name in parting.shapes}
        rest, moments = fill_with_moments(weights, parting.regions(self._part.rank), parting.shapes, pieces)
        self.put(rest, moments)  # the other weights were filled in place
