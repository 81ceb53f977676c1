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
    """The weights of a host lie in memory that its ranks share. Every ``period`` steps, hosts take the mean of theirs.

    A step may read weights of which another rank has written a part, and what two ranks add to one weight at the same
    time may count once: sparse gradients, which touch few weights, seldom meet. So weights differ from run to run,
    unless each host has one rank, which makes it local SGD. Ranks wait for each other only where hosts take their mean,
    and where the consensus is asked for; in it, a host counts as often as it has ranks. Buffers, such as running means,
    are each rank's own.
    """

    def __init__(self, options: HogwildOptions, communicator: Communicator) -> None:
        super().__init__(communicator)
        self._period = options.period
        self._host, self._leaders = split_by_memory(communicator)
        self._leads = self._host.rank == 0
        """Whether this rank speaks for its host with the leaders of the others."""
        self._share = self._host.size * self._leaders.size / communicator.size
        """What this host counts in a mean over hosts."""
        self._several_hosts = self._host.size < communicator.size
        self._between = create_averager(options, self._leaders)
        self._shared = False

    @override
    def wrap(self, model: nn.Module, make_optimizer: Callable[[nn.Module], Optimizer]) -> tuple[nn.Module, Optimizer]:
        if any(parameter.device.type != "cpu" for parameter in model.parameters()):
            raise ConfigError(
                "train.strategy hogwild has ranks step on weights in the host's memory, and this rank computes on a"
                " GPU; start Spark without GPUs for tasks, or set train.strategy to local_sgd"
            )
        return super().wrap(model, make_optimizer)

    @property
    @override
    def replicas_differ(self) -> bool:
        return self._several_hosts

    @override
    def begin_epoch(self, epoch: int) -> None:
        if not self._shared:  # only now: what a checkpoint gives to ranks of a host may come from several others
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
            self._host.barrier()  # all have read what the leader now overwrites
        self._host.barrier()

    @torch.no_grad()
    def _average(self) -> None:
        """Give all hosts the mean of their weights, while none of their ranks steps."""
        self._host.barrier()
        if self._leads and self._several_hosts:
            for parameter in self.trained.values():
                parameter.mul_(self._share)
            agree(self._leaders, self.trained.values(), name="weights", averager=self._between)
        self._host.barrier()
