"""Synchronous data parallelism of replicas that are each split over several ranks: :mod:`sparkdl.layouts`."""

from typing import Any

from torch import nn
from typing_extensions import override

from sparkdl.collectives import Averager, Communicator, GradientAverager, Ring, sparse_tables
from sparkdl.training.strategies.allreduce import AllReduce
from sparkdl.training.strategies.keeps_part import KeepsPart, SharedPart

__all__ = ["PartAllReduce"]


class PartAllReduce(KeepsPart, AllReduce):
    """The steps of :class:`AllReduce`: ranks that have the same part of a replica average its gradients.

    Gradients of the parameters in ``front`` are averaged over all ranks of the run, since each has rows of its own.
    """

    def __init__(
        self, communicator: Communicator, averager: Averager, part: SharedPart, *, everyone: Communicator
    ) -> None:
        super().__init__(communicator, averager)
        self._part: SharedPart = part
        self._everyone = everyone

    @override
    def _averagers_of(self, model: nn.Module) -> list[GradientAverager]:
        tables, parameters = sparse_tables(model), dict(model.named_parameters())
        front = [parameters.pop(name) for name in self._part.front]
        return [
            GradientAverager(parameters.values(), self.averager, tables=tables),
            GradientAverager(front, Ring(self._everyone), tables=tables),
        ]

    @override
    def state(self) -> dict[str, Any]:
        return self._part.state()
