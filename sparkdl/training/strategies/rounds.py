"""Rounds in which each rank trains the sub-network that it was dealt; after a round all have the whole network."""

import itertools
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from math import prod
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer
from typing_extensions import override

from sparkdl.collectives import Averager, Communicator, agree, message_of, parts_of
from sparkdl.inputs.tensors import Inputs, answer
from sparkdl.settings.strategies import RoundsOptions
from sparkdl.training.strategies.allreduce import AllReduce
from sparkdl.training.strategies.residual_blocks import BlockCut
from sparkdl.training.strategies.strategy import Strategy, kept, restart
from sparkdl.training.strategies.sub_networks import Cut, Neurons, deal, overwrite, tensors_of

__all__ = ["STATISTICS_BATCHES", "Rounds"]

STATISTICS_BATCHES = 8
"""Training batches of each rank from which the statistics of batch normalisation are computed anew."""


Options = TypeVar("Options", bound=RoundsOptions)


class Rounds(Strategy, Generic[Options]):
    """Between rounds all ranks have the whole network, which is the consensus; in a round each has its sub-network.

    The parameters stay the same objects; in a round they have the sub-network's sizes. Tensors that are not cut are
    averaged over all ranks. A round has at most ``period`` steps, and ends with the epoch. Each round starts with a new
    optimizer state, because moments belong to parts that another rank may have now. Subclasses define the parts.
    """

    _part: ClassVar[type[Cut] | type[BlockCut]]
    """The class that describes which part of a tensor a sub-network has."""

    def __init__(
        self, options: Options, communicator: Communicator, averager: Averager, *, seed: int, epochs: int
    ) -> None:
        super().__init__(communicator, averager)
        self._options, self._seed = options, seed
        self._epochs = range(options.allreduce_first, epochs - options.allreduce_last)
        self._allreduce = AllReduce(communicator, averager)
        self._dealing = 0 in self._epochs
        """Whether sub-networks are trained in this epoch."""
        self._round = 0
        """Completed rounds."""
        self._steps = 0
        """Steps of the round in progress."""
        self._whole: dict[str, torch.Tensor] = {}
        """In a round: the tensors that are cut, as of its beginning, the same on all ranks."""

    @abstractmethod
    def _cut_up(self, model: nn.Module) -> tuple[Mapping[str, Cut | BlockCut], Mapping[str, int]]:
        """How the network's tensors are cut, by name, and the number of parts to deal, by layer."""

    @property
    @override
    def replicas_differ(self) -> bool:
        return bool(self._whole)

    @override
    def wrap(self, model: nn.Module, make_optimizer: Callable[[nn.Module], Optimizer]) -> tuple[nn.Module, Optimizer]:
        self.model, self.optimizer = self._allreduce.wrap(model, make_optimizer)
        self._make_optimizer = make_optimizer
        self._cuts, self._counts = self._cut_up(model)
        if self._dealing:
            tensors = tensors_of(model)
            for name, cut in self._cuts.items():
                cut.make_fresh(tensors[name].data, ranks=self.communicator.size)
        return self.model, self.optimizer

    @override
    def row_weight(self, *, own_rows: int, global_rows: int) -> float:
        if self._dealing:
            return 1 / own_rows
        return self._allreduce.row_weight(own_rows=own_rows, global_rows=global_rows)

    @override
    def begin_epoch(self, epoch: int) -> None:
        self._dealing = epoch in self._epochs
        if self._whole and not self._dealing:
            self._end_round()  # the run was resumed with other epochs of sub-networks

    @override
    def begin_step(self) -> None:
        if self._dealing and not self._whole:
            tensors = tensors_of(self.model)
            self._begin_round({name: tensors[name].data for name in self._cuts})

    @override
    def begin_last_pass(self) -> None:
        if not self._dealing:
            self._allreduce.begin_last_pass()

    @override
    def finish_gradients(self) -> None:
        if not self._dealing:
            self._allreduce.finish_gradients()

    @override
    def after_step(self) -> None:
        if self._dealing:
            self._steps += 1
            if self._steps == self._options.period:
                self._end_round()

    @override
    def end_epoch(self) -> None:
        if not self._dealing:
            self._allreduce.end_epoch()
        elif self._whole:
            self._end_round()

    @override
    @torch.no_grad()
    def find_statistics(self, inputs: Iterable[Inputs]) -> None:
        layers = [module for module in self.model.modules() if isinstance(module, _BatchNorm)]
        layers = [layer for layer in layers if layer.track_running_stats]
        if not self._dealing or not layers:
            return
        seen = list(itertools.islice(inputs, STATISTICS_BATCHES))
        total = int(self.communicator.all_reduce(torch.tensor([float(len(seen))]), op="sum"))
        if not total:
            return
        momenta = [layer.momentum for layer in layers]
        self.model.eval()
        for layer in layers:
            layer.reset_running_stats()
            layer.momentum = None  # the mean over all batches
            layer.train()
        for batch in seen:
            answer(self.model, batch)
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
        buffers = [buffer for layer in layers for buffer in layer.buffers()]
        for buffer in buffers:
            if buffer.is_floating_point():
                buffer *= len(seen) * self.communicator.size / total
        agree(self.communicator, buffers, name="statistics")

    @override
    @contextmanager
    def consensus(self) -> Iterator[nn.Module]:
        if not self._whole:
            with self._allreduce.consensus() as model:
                yield model
            return
        tensors = tensors_of(self.model)
        own = {name: tensors[name].data for name in self._cuts}
        whole = {name: value.clone() for name, value in self._whole.items()}
        with kept(self._uncut()):
            self._assemble(whole)
            try:
                yield self.model
            finally:
                overwrite(self.model, own)

    @override
    def state(self) -> dict[str, Any]:
        return {
            "round": self._round,
            "steps": self._steps,
            "whole": self._whole,
            "cuts": {name: list(cut) for name, cut in self._cuts.items()},
            "counts": dict(self._counts),
            "seed": self._seed,
            "ranks": self.communicator.size,
        }

    @override
    def load(self, state: Mapping[str, Any] | None) -> None:
        self._round = state["round"] if state else 0
        if state and state["whole"] and state["ranks"] == self.communicator.size:
            self._begin_round({name: state["whole"][name] for name in self._cuts})
            self._steps = state["steps"]

    @classmethod
    @override
    def assemble(cls, state: Mapping[str, Any], replicas: Iterable[Mapping[str, torch.Tensor]]) -> dict[str, Any]:
        whole = dict(state["whole"])
        cuts = {name: cls._part(*cut) for name, cut in state["cuts"].items()}
        shares = deal(state["counts"], size=state["ranks"], seed=state["seed"], number=state["round"])

        def uncut() -> Iterator[Mapping[str, torch.Tensor]]:
            for neurons, replica in zip(shares, replicas, strict=True):
                for name, cut in cuts.items():
                    cut.put(replica[name], whole[name], neurons)
                yield {name: value for name, value in replica.items() if name not in cuts}

        return super().assemble(state, uncut()) | whole

    def _deal(self) -> list[Neurons]:
        return deal(self._counts, size=self.communicator.size, seed=self._seed, number=self._round)

    def _begin_round(self, whole: dict[str, torch.Tensor]) -> None:
        self._whole, self._steps = whole, 0
        own = self._deal()[self.communicator.rank]
        overwrite(self.model, {name: cut.take(whole[name], own) for name, cut in self._cuts.items()})
        restart(self.optimizer, self._make_optimizer(self.model))

    @torch.no_grad()
    def _end_round(self) -> None:
        self._assemble(self._whole)
        self._whole, self._round = {}, self._round + 1
        restart(self.optimizer, self._make_optimizer(self.model))

    def _assemble(self, whole: dict[str, torch.Tensor]) -> None:
        """Assemble the parts of all ranks in ``whole``, and put it into the model."""
        tensors, shares = tensors_of(self.model), self._deal()
        kinds = [
            [(whole[name].dtype, cut.shape(whole[name], own)) for name, cut in self._cuts.items()] for own in shares
        ]
        longest = max(sum(prod(shape) * dtype.itemsize for dtype, shape in each) for each in kinds)
        message = message_of(*(tensors[name].data for name in self._cuts))
        messages = self.communicator.all_gather(nn.functional.pad(message, (0, longest - len(message))))
        for own, message, kind in zip(shares, messages, kinds, strict=True):
            for (name, cut), part in zip(self._cuts.items(), parts_of(message, *kind), strict=True):
                cut.put(part, whole[name], own)
        agree(self.communicator, self._uncut(), name="uncut", averager=self.averager)
        overwrite(self.model, whole)

    def _uncut(self) -> list[torch.Tensor]:
        return [tensor for name, tensor in tensors_of(self.model).items() if name not in self._cuts]
