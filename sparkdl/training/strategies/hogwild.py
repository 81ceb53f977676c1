"""Hogwild! (Niu et al., 2011, arXiv 1106.5730): the ranks of a host step on one copy of the weights, without locks."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.optim import Optimizer
from typing_extensions import override

from sparkdl.collectives import Communicator, agree, create_averager, shared_copies, split_by_memory
from sparkdl.errors import ConfigError
from sparkdl.settings.strategies import HogwildOptions
from sparkdl.training.strategies.strategy import SteppingAlone, kept

__all__ = ["Hogwild"]


class Hogwild(SteppingAlone):
    """The weights of a host are in memory that its ranks share. Every ``period`` steps, hosts average their weights.

    A step may read weights that another rank is writing, and of two updates of one weight at the same time, one may be
    lost; sparse gradients, which touch few weights, seldom collide. Therefore weights differ from run to run, unless
    each host has one rank, which is local SGD. Ranks wait for each other only when hosts average their weights, and
    when the consensus is computed. In the mean, a host is weighted by its number of ranks. Buffers, such as running
    means, are each rank's own.
    """

    def __init__(self, options: HogwildOptions, communicator: Communicator) -> None:
        super().__init__(communicator)
        self._period = options.period
        self._host, self._leaders = split_by_memory(communicator)
        self._leads = self._host.rank == 0
        """Whether this rank exchanges its host's weights with the leaders of other hosts."""
        self._share = self._host.size * self._leaders.size / communicator.size
        """This host's share of all ranks, times the number of hosts: its factor before hosts average."""
        self._several_hosts = self._host.size < communicator.size
        self._between = create_averager(options, self._leaders)
        self._shared = False

    @override
    def wrap(self, model: nn.Module, make_optimizer: Callable[[nn.Module], Optimizer]) -> tuple[nn.Module, Optimizer]:
        if any(parameter.device.type != "cpu" for parameter in model.parameters()):
            raise ConfigError(
                "with train.strategy hogwild, ranks change weights in the host's memory, but this rank computes on a"
                " GPU; start Spark without GPUs for tasks, or set train.strategy to local_sgd"
            )
        return super().wrap(model, make_optimizer)

    @property
    @override
    def replicas_differ(self) -> bool:
        return self._several_hosts

    @override
    def begin_epoch(self, epoch: int) -> None:
        if not self._shared:  # not before: a checkpoint may restore the ranks of a host from several hosts
            trained = list(self.trained.values())
            for parameter, shared in zip(trained, shared_copies(self._host, trained), strict=True):
                parameter.data = shared
            self._shared = True

    @override
    def after_step(self) -> None:
        super().after_step()
        if self._several_hosts and self._steps % self._period == 0:
            self._average()

    @override
    @contextmanager
    def consensus(self) -> Iterator[nn.Module]:
        weights = self.trained.values() if self._leads and self._several_hosts else ()
        with kept([*weights, *self.model.buffers()]):
            self._average()
            agree(self.communicator, self.model.buffers(), name="consensus")
            yield self.model
            self._host.barrier()  # all ranks have read what the leader now overwrites
        self._host.barrier()

    @torch.no_grad()
    def _average(self) -> None:
        """Set the weights of all hosts to their mean, while no rank steps."""
        self._host.barrier()
        if self._leads and self._several_hosts:
            for parameter in self.trained.values():
                parameter.mul_(self._share)
            agree(self._leaders, self.trained.values(), name="weights", averager=self._between)
        self._host.barrier()
