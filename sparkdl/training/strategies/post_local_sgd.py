"""Post-local SGD (Lin et al., 2020, arXiv 1808.07217): all-reduce while weights change fast, local SGD afterwards."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

from torch import nn
from torch.optim import Optimizer
from typing_extensions import override

from sparkdl.collectives import Averager, Communicator
from sparkdl.settings.strategies import PostLocalSGDOptions
from sparkdl.training.strategies.allreduce import AllReduce
from sparkdl.training.strategies.local_sgd import LocalSGD
from sparkdl.training.strategies.strategy import Strategy

__all__ = ["PostLocalSGD"]


class PostLocalSGD(Strategy):
    """The first epochs as :class:`AllReduce`, all that follow as :class:`LocalSGD`."""

    replicas_differ: ClassVar[bool] = True

    def __init__(self, options: PostLocalSGDOptions, communicator: Communicator, averager: Averager) -> None:
        super().__init__(communicator, averager)
        self._first = AllReduce(communicator, averager)
        self._then = LocalSGD(
            communicator, averager, period=options.period, average_momentum=options.momentum == "averaged"
        )
        self._after_epochs = options.after_epochs
        self._now: Strategy = self._first

    @override
    def wrap(self, model: nn.Module, make_optimizer: Callable[[nn.Module], Optimizer]) -> tuple[nn.Module, Optimizer]:
        model, optimizer = self._first.wrap(model, make_optimizer)
        return self._then.wrap(model, lambda _: optimizer)

    @override
    def begin_epoch(self, epoch: int) -> None:
        self._now = self._first if epoch < self._after_epochs else self._then

    @override
    def row_weight(self, *, own_rows: int, global_rows: int) -> float:
        return self._now.row_weight(own_rows=own_rows, global_rows=global_rows)

    @override
    def begin_last_pass(self) -> None:
        self._now.begin_last_pass()

    @override
    def finish_gradients(self) -> None:
        self._now.finish_gradients()

    @override
    def after_step(self) -> None:
        self._now.after_step()

    @override
    def end_epoch(self) -> None:
        self._now.end_epoch()

    @override
    @contextmanager
    def consensus(self) -> Iterator[nn.Module]:
        with self._now.consensus() as model:
            yield model

    @override
    def state(self) -> dict[str, Any]:
        return self._then.state()

    @override
    def load(self, state: Mapping[str, Any] | None) -> None:
        self._then.load(state)
