"""Post-local SGD (Lin et al., 2020, arXiv 1808.07217): all-reduce while weights change fast, local SGD afterwards."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

from torch import nn
from torch.optim import Optimizer
from typing_extensions import override

from sparkdl.training.strategies.strategy import Sharded, Strategy

__all__ = ["PostLocalSGD"]


class PostLocalSGD(Strategy):
    """The first epochs by one strategy, all that follow by another one, which keeps the state of both.

    The first is all-reduce and the other one local SGD; both have the same ranks, averager and parts of replicas.
    """

    replicas_differ: ClassVar[bool] = True

    def __init__(self, first: Strategy, then: Strategy, *, after_epochs: int) -> None:
        super().__init__(then.communicator, then.averager)
        self._first, self._then, self._after_epochs = first, then, after_epochs
        self._now = first

    @override
    def wrap(self, model: nn.Module, make_optimizer: Callable[[nn.Module], Optimizer]) -> tuple[nn.Module, Optimizer]:
        model, optimizer = self._first.wrap(model, make_optimizer)
        return self._then.wrap(model, lambda _: optimizer)

    @property
    @override
    def sharded(self) -> Sharded | None:
        return self._then.sharded

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

    @override
    def own_state(self) -> dict[str, Any]:
        return self._then.own_state()

    @override
    def load_own(self, own: Mapping[str, Any]) -> None:
        self._then.load_own(own)
