"""Strategies whose ranks step alone, for replicas that are each split over several ranks: :mod:`sparkdl.layouts`.

What these strategies exchange is averaged number by number, so that the ranks that have the same part exchange it as
ranks with whole replicas would.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer
from typing_extensions import override

from sparkdl.collectives import Communicator, GradientAverager, Ring, sparse_tables
from sparkdl.layouts import ModelPart
from sparkdl.training.strategies.diloco import DiLoCo
from sparkdl.training.strategies.easgd import EASGD
from sparkdl.training.strategies.keeps_part import CONSENSUS, KeepsPart, SharedPart
from sparkdl.training.strategies.local_sgd import LocalSGD
from sparkdl.training.strategies.strategy import SteppingAlone

__all__ = ["PartDiLoCo", "PartEASGD", "PartLocalSGD", "SteppingPart"]


class SteppingPart(KeepsPart, SteppingAlone):
    """The ranks of a replica step together, and alone from those of other replicas.

    Gradients of the parameters in ``front`` are added up over the ranks of the replica, since each has rows of its own.
    The state of the strategy is that of a part, so that each rank saves its own.
    """

    def __init__(self, part: SharedPart, replica: Communicator, *args: Any, **options: Any) -> None:
        """``replica`` has the ranks that share one; all else is what the strategy for whole replicas takes."""
        super().__init__(*args, **options)
        self._part: SharedPart = part
        self._replica = replica
        self._front: list[nn.Parameter] = []

    @override
    def wrap(self, model: nn.Module, make_optimizer: Callable[[nn.Module], Optimizer]) -> tuple[nn.Module, Optimizer]:
        model, optimizer = super().wrap(model, make_optimizer)
        parameters = dict(model.named_parameters())
        self._front = [parameters[name] for name in self._part.front]
        self._front_averager = GradientAverager(self._front, Ring(self._replica), tables=sparse_tables(model))
        return model, optimizer

    @override
    def finish_gradients(self) -> None:
        super().finish_gradients()
        if any(parameter.grad is not None for parameter in self._front):  # not of a replica without rows in this step
            self._front_averager.finish()

    @override
    def state(self) -> dict[str, Any]:
        return self._part.state()

    @override
    def load(self, state: Mapping[str, Any] | None) -> None:
        super().load(None)  # what belongs to a state follows in load_own

    @override
    def own_state(self) -> dict[str, Any]:
        return {**super().own_state(), "of_part": super().state()}

    @override
    def load_own(self, own: Mapping[str, Any]) -> None:
        super().load(own["of_part"])
        super().load_own(own)

    @override
    def adopt(self, pieces: Iterable[ModelPart]) -> None:
        super().adopt(pieces)
        self.load(None)


class PartLocalSGD(SteppingPart, LocalSGD):
    """The steps of :class:`LocalSGD`."""


class PartDiLoCo(SteppingPart, DiLoCo):
    """The steps of :class:`DiLoCo`."""


class PartEASGD(SteppingPart, EASGD):
    """The steps of :class:`EASGD`."""

    @override
    def own_state(self) -> dict[str, Any]:
        return {**super().own_state(), CONSENSUS: self._centre}
