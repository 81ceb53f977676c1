"""Synchronous data parallelism of replicas that several ranks have together: :mod:`sparkdl.layouts`."""

from typing import Any

from torch import nn
from typing_extensions import override

from sparkdl.collectives import Averager, Communicator, GradientAverager, Ring, sparse_tables
from sparkdl.training.strategies.allreduce import AllReduce
from sparkdl.training.strategies.keeps_part import KeepsPart, SharedPart

__all__ = ["PartAllReduce"]


class PartAllReduce(KeepsPart, AllReduce):
    """The steps of :class:`AllReduce`: those that have the same part of a replica average the gradients of it.

    Gradients of the front's parameters are averaged over all ranks of the run, each of which has seen other rows.
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
