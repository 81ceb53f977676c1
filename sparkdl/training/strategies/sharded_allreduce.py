"""Synchronous data parallelism of replicas in shards (ZeRO, FSDP): :mod:`sparkdl.layouts.fully_sharded`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer
from typing_extensions import override

from sparkdl.collectives import Averager, Communicator, TorchCommunicator, agree
from sparkdl.layouts.fully_sharded import FullySharded
from sparkdl.training.strategies.keeps_part import KeepsPart
from sparkdl.training.strategies.strategy import Strategy, kept

__all__ = ["ShardedAllReduce"]


class ShardedAllReduce(KeepsPart, Strategy):
    """The steps of :class:`~sparkdl.training.strategies.allreduce.AllReduce`, where each rank updates its shard.

    As there, buffers are each rank's own until the end of an epoch.
    """

    def __init__(self, communicator: Communicator, averager: Averager, *, shard: Literal["optimizer", "all"]) -> None:
        super().__init__(communicator, averager)
        self._shard = shard
        self._device: torch.device
        self._part: FullySharded

    @property
    @override
    def needs_all_ranks(self) -> bool:
        return True

    @override
    def place(self, model: nn.Module, device: torch.device) -> nn.Module:
        self._device = device
        return model  # shards are moved there one after another

    @override
    def wrap(self, model: nn.Module, make_optimizer: Callable[[nn.Module], Optimizer]) -> tuple[nn.Module, Optimizer]:
        if not isinstance(self.communicator, TorchCommunicator):
            raise TypeError("sharding uses PyTorch's DTensor, and needs the torch backend")
        self.communicator.broadcast_module(model)
        whole = self._shard == "optimizer"
        self._part = FullySharded(model, self.communicator, self._device, whole_in_step=whole)
        self.model, self.optimizer = model, make_optimizer(model)
        return self.model, self.optimizer

    @override
    def row_weight(self, *, own_rows: int, global_rows: int) -> float:
        return 1 / global_rows  # gradients are summed over ranks

    @override
    def end_epoch(self) -> None:
        agree(self.communicator, self.model.buffers(), name="buffers")

    @override
    @contextmanager
    def consensus(self) -> Iterator[nn.Module]:
        """The whole network, whose layers are gathered one after another; all ranks call it equally often."""
        with kept(self.model.buffers()):
            agree(self.communicator, self.model.buffers(), name="consensus")
            yield self.model
            self._part.take_apart()

    @override
    def state(self) -> dict[str, Any]:
        return {"slices": self._part.parting.state()}
