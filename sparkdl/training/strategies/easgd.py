"""Synchronous elastic averaging (EASGD: Zhang et al., 2015, arXiv 1412.6651), and DeepSpark's period and rate for it.

Every ``period`` steps, rank i and the centre move towards each other: d = rate * (x_i - centre), x_i -= d, and the
centre gains the sum of all d. With rate = 0.9 / ranks the centre moves as far as the paper's beta = 0.9 says.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import nn
from torch.optim import Optimizer
from typing_extensions import override

from sparkdl.collectives import Averager, Communicator, agree, start_means
from sparkdl.settings.strategies import DeepSparkOptions, EASGDOptions
from sparkdl.training.strategies.strategy import SteppingAlone, kept

__all__ = ["EASGD"]

BETA = 0.9  # the paper's: ranks x rate


class EASGD(SteppingAlone):
    """The consensus is the centre, of which every rank holds a copy. A single rank has one, too."""

    replicas_differ: ClassVar[bool] = True

    def __init__(
        self, options: EASGDOptions | DeepSparkOptions, communicator: Communicator, averager: Averager
    ) -> None:
        super().__init__(communicator, averager)
        self._period = options.period
        self._rate = options.rate or BETA / communicator.size
        self._centre: dict[str, torch.Tensor] = {}

    @override
    def wrap(self, model: nn.Module, make_optimizer: Callable[[nn.Module], Optimizer]) -> tuple[nn.Module, Optimizer]:
        model, optimizer = super().wrap(model, make_optimizer)
        self.load(None)
        return model, optimizer

    @override
    @torch.no_grad()
    def after_step(self) -> None:
        super().after_step()
        if self._steps % self._period:
            return
        trained = self.trained
        pulls = {name: self._rate * (parameter - self._centre[name]) for name, parameter in trained.items()}
        for name, parameter in trained.items():
            parameter.sub_(pulls[name])
        start_means(self.averager, pulls.values(), name="pulls")()
        for name, mean in pulls.items():
            self._centre[name].add_(mean, alpha=self.communicator.size)

    @override
    @contextmanager
    def consensus(self) -> Iterator[nn.Module]:
        with kept([*self.trained.values(), *self.model.buffers()]):
            agree(self.communicator, self.model.buffers(), name="consensus")
            for name, parameter in self.trained.items():
                parameter.detach().copy_(self._centre[name])
            yield self.model

    @override
    def state(self) -> dict[str, Any]:
        return super().state() | {"centre": self._centre}

    @classmethod
    @override
    def assemble(cls, state: Mapping[str, Any], replicas: Iterable[Mapping[str, torch.Tensor]]) -> dict[str, Any]:
        centre: dict[str, torch.Tensor] = state["centre"]
        return super().assemble(state, replicas) | centre

    @override
    def load(self, state: Mapping[str, Any] | None) -> None:
        super().load(state)
        centre = state["centre"] if state else self.trained
        self._centre = {name: centre[name].detach().clone() for name in self.trained}
