"""Synchronous data parallelism of replicas that several ranks have together: :mod:`sparkdl.layouts`."""

from typing import Any

from typing_extensions import override

from sparkdl.collectives import Averager, Communicator
from sparkdl.training.strategies.allreduce import AllReduce
from sparkdl.training.strategies.keeps_part import KeepsPart, SharedPart

__all__ = ["PartAllReduce"]


class PartAllReduce(KeepsPart, AllReduce):
    """The steps of :class:`AllReduce`: those that have the same part of a replica average the gradients of it."""

    def __init__(self, communicator: Communicator, averager: Averager, part: SharedPart) -> None:
        super().__init__(communicator, averager)
        self._part: SharedPart = part

    @override
    def state(self) -> dict[str, Any]:
        return self._part.state()
