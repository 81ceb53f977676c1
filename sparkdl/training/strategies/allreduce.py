"""Synchronous data parallelism: every step applies the average gradient of all ranks.

Horovod (Sergeev and Del Balso, 2018, arXiv 1802.05799) runs the ring all-reduce of the last layers' gradients while
back-propagation continues through the layers before them.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.optim import Optimizer
from typing_extensions import override

from sparkdl.collectives import Averager, Communicator, GradientAverager, GradientNoise, agree, sparse_tables
from sparkdl.training.strategies.strategy import Strategy, kept

__all__ = ["AllReduce"]


class AllReduce(Strategy):
    """All replicas take the same step, so that their parameters never differ.

    Buffers (running means of batch normalisation) differ until the end of an epoch, when all take their mean. The
    averager defines how gradients are combined, by default as their mean. For embedding tables with sparse gradients,
    only the rows that occur on some rank are exchanged.
    """

    _agreed = False

    def __init__(self, communicator: Communicator, averager: Averager, *, measure_noise: bool = False) -> None:
        super().__init__(communicator, averager)
        self._noise = GradientNoise(communicator) if measure_noise else None

    @override
    def wrap(self, model: nn.Module, make_optimizer: Callable[[nn.Module], Optimizer]) -> tuple[nn.Module, Optimizer]:
        model, optimizer = super().wrap(model, make_optimizer)
        self._averagers = self._averagers_of(model)
        return model, optimizer

    def _averagers_of(self, model: nn.Module) -> list[GradientAverager]:
        """The averagers of gradients, each for other parameters."""
        tables = sparse_tables(model)
        return [GradientAverager(model.parameters(), self.averager, tables=tables, noise=self._noise)]

    @override
    def row_weight(self, *, own_rows: int, global_rows: int) -> float:
        if self._noise:
            self._noise.begin_step(global_rows)
        return self.communicator.size / global_rows  # the mean over ranks is then the mean over all their rows

    @override
    def begin_last_pass(self) -> None:
        self._agreed = False
        for each in self._averagers:
            each.begin_last_pass()

    @override
    def finish_gradients(self) -> None:
        for each in self._averagers:
            each.finish()

    @override
    def end_epoch(self) -> None:
        agree(self.communicator, self.model.buffers(), name="buffers")
        self._agreed = True
        self.averager.end_epoch()

    @override
    def figures(self) -> dict[str, float]:
        return self._noise.figures() if self._noise else {}

    @override
    @contextmanager
    def consensus(self) -> Iterator[nn.Module]:
        if self._agreed:
            yield self.model
            return
        with kept(self.model.buffers()):
            agree(self.communicator, self.model.buffers(), name="consensus")
            yield self.model

    @override
    def state(self) -> dict[str, Any]:
        return self.averager.state()

    @override
    def load(self, state: Mapping[str, Any] | None) -> None:
        if state:
            self.averager.load(state)
