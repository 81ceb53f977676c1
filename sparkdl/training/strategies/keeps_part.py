"""What strategies have in common by which each rank keeps a part of a model."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim import Optimizer

from sparkdl.layouts import ModelPart, Parting, fill_with_moments

__all__ = ["KeepsPart", "OwnPart", "SharedPart"]


class OwnPart(Protocol):
    """The part of a network that a rank keeps. Runs on ranks."""

    @property
    def parting(self) -> Parting:
        """Who has what."""

    @property
    def rank(self) -> int:
        """Which part this is."""

    def weights(self) -> dict[str, torch.Tensor]:
        """The part, and what is whole on all, by name: the very tensors."""

    def moments(self, optimizer: Optimizer) -> dict[str, Any]:
        """What the optimizer keeps of it, by name: the very tensors."""

    def put(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Overwrite what :meth:`weights` gives, or some of it."""

    def put_moments(self, optimizer: Optimizer, moments: Mapping[str, Any]) -> None:
        """Overwrite what :meth:`moments` gives."""


class SharedPart(OwnPart, Protocol):
    """The part of a replica that a rank keeps, where several have one together. Runs on ranks."""

    model: nn.Module
    """With the part's parameters; it answers as the whole network does, and all ranks of a replica call it."""

    @property
    def front(self) -> Sequence[str]:
        """The parameters whose gradients have to be averaged over all ranks of the run: see :class:`TensorParallel`."""

    def state(self) -> dict[str, Any]:
        """What a checkpoint says of the parts, as plain values."""

    def clip_gradients(self, largest: float) -> None:
        """Shrink gradients whose norm, of all parts together, is larger."""


class KeepsPart:
    """:class:`~sparkdl.training.strategies.strategy.Sharded` for ranks that hold one part each, from ``wrap`` on."""

    _part: OwnPart
    optimizer: Optimizer

    @property
    def sharded(self) -> "KeepsPart":
        """See :class:`~sparkdl.training.strategies.strategy.Strategy`."""
        return self

    @property
    def replicas_differ(self) -> bool:
        """A checkpoint has to hold what each rank keeps."""
        return True

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
        self.put(rest, moments)  # weights are filled where they are
