"""Independent subnet training of a network that is never whole on any rank (Yuan et al., 2019, arXiv 1910.02120).

Weights are the same, to the last bit, as with :mod:`sparkdl.training.strategies.ist`: the same neurons are dealt to the
same ranks. After a round a rank keeps the neurons that it has trained, and sends them to their next owners, piece by
piece, when the next round begins.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from math import sqrt
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from typing_extensions import override

from sparkdl.collectives import Averager, Communicator, agree
from sparkdl.layouts import ModelPart, fill, room_for
from sparkdl.models import full_state
from sparkdl.settings.strategies import ISTOptions
from sparkdl.training.strategies.layer_by_layer import LayerByLayer
from sparkdl.training.strategies.plain_stacks import draw_parts, ownership_of, replace_parameters
from sparkdl.training.strategies.shares import Ownership, grow, kept_of, move_neurons, shrink
from sparkdl.training.strategies.strategy import Sharded, SteppingAlone, restart
from sparkdl.training.strategies.sub_networks import Neurons, overwrite, tensors_of

__all__ = ["ShardedIST"]


class ShardedIST(SteppingAlone):
    """In a round each rank has its sub-network; between rounds it has its part of the whole network.

    For a layer that reads another hidden layer, a rank keeps the rows of its neurons, with a column for every neuron of
    the layer before. In a round, the parameter has only the columns of the rank's own neurons, and the complete rows
    are kept aside.
    """

    def __init__(self, options: ISTOptions, communicator: Communicator, averager: Averager, *, seed: int) -> None:
        super().__init__(communicator, averager)
        self._options, self._seed = options, seed
        self.ownership: Ownership
        """How the network is split over ranks."""
        self._round = 0
        """Started rounds."""
        self._in_round = False
        self._waiting: dict[str, torch.Tensor] = {}
        """In a round: this rank's part of parameters of which the sub-network has fewer columns."""

    @property
    @override
    def sharded(self) -> Sharded:
        return self

    @property
    @override
    def replicas_differ(self) -> bool:
        return True

    @override
    def place(self, model: nn.Module, device: torch.device) -> nn.Module:
        """Give a network that was built without weights this rank's parts of the initial weights."""
        self.ownership = ownership_of(model, seed=self._seed, ranks=self.communicator.size)
        parts = draw_parts(model, self.ownership, self._own(0), seed=self._seed)
        for name, cut in self.ownership.cuts.items():
            if cut.columns:
                parts[name] /= sqrt(self.communicator.size)  # sub-networks start with the network's variance, as in IST
        replace_parameters(model, parts)
        return model.to(device)

    @override
    def wrap(self, model: nn.Module, make_optimizer: Callable[[nn.Module], Optimizer]) -> tuple[nn.Module, Optimizer]:
        self.model, self.optimizer, self._make_optimizer = model, make_optimizer(model), make_optimizer
        self._leave_room()
        return self.model, self.optimizer

    @override
    def begin_step(self) -> None:
        if not self._in_round:
            self._begin_round()

    @override
    def after_step(self) -> None:
        super().after_step()
        if self._steps == self._options.period:
            self._end_round()

    @override
    def end_epoch(self) -> None:
        if self._in_round:
            self._end_round()

    @override
    @contextmanager
    def consensus(self) -> Iterator[nn.Module]:
        """The whole network, computed by all ranks together. Raises RuntimeError within a round."""
        if self._in_round:
            raise RuntimeError("a sharded network can be computed as a whole only between two rounds")
        yield LayerByLayer(self.model, self.ownership.cuts, self._owners, self.communicator)

    @override
    def state(self) -> dict[str, Any]:
        counted = {"round": self._round, "steps": self._steps, "in_round": self._in_round}
        return {**counted, "ownership": self.ownership.state()}

    @override
    def load(self, state: Mapping[str, Any] | None) -> None:
        """Resume from a state of as many ranks. Parameters are empty until the rank's part is put back."""
        self._round, self._steps, self._in_round = 0, 0, False
        if state:
            self._round, self._steps, self._in_round = state["round"], state["steps"], state["in_round"]
        self._leave_room()
        tensors = tensors_of(self.model)
        overwrite(self.model, {name: tensors[name].new_empty(0) for name in self.ownership.cuts})
        self._waiting = {}

    @override
    def own_state(self) -> dict[str, Any]:
        return {**super().own_state(), "waiting": self._waiting}

    @override
    def load_own(self, own: Mapping[str, Any]) -> None:
        super().load_own(own)
        self._waiting = dict(own["waiting"])

    def weights(self) -> dict[str, torch.Tensor]:
        """See :class:`Sharded`."""
        return full_state(self.model)

    def moments(self) -> dict[str, Any]:
        """See :class:`Sharded`. Moments belong to the round in progress."""
        return self.optimizer.state_dict()

    def put(self, weights: Mapping[str, torch.Tensor], moments: Mapping[str, Any]) -> None:
        """See :class:`Sharded`."""
        overwrite(self.model, weights)  # needs no second copy
        self.optimizer.load_state_dict(dict(moments))

    def adopt(self, pieces: Iterable[ModelPart]) -> None:
        """See :class:`Sharded`."""
        self.load(None)
        regions, tensors = self.ownership.regions(self._own(0)), tensors_of(self.model)
        parts = room_for(regions, self.ownership.shapes, tensors)
        rest = fill(parts, regions, self.ownership.shapes, pieces)
        overwrite(self.model, parts)
        for name, value in rest.items():
            tensors[name].data.copy_(value)

    def _leave_room(self) -> None:
        """Free gradients and moments, which each round starts anew; some optimizers allocate moments before a step."""
        self.optimizer.zero_grad()
        self.optimizer.state.clear()

    @property
    def _owners(self) -> list[Neurons]:
        """By rank, the neurons that it has now: those dealt for the last round, and before any round for the first."""
        return self.ownership.owners(max(self._round - 1, 0))

    def _own(self, number: int) -> Neurons:
        return self.ownership.owners(number)[self.communicator.rank]

    @torch.no_grad()
    def _begin_round(self) -> None:
        before, own, tensors = self._owners, self._own(self._round), tensors_of(self.model)
        for name, cut in self.ownership.cuts.items() if self._round else ():
            theirs = [kept_of(cut, neurons)[0] for neurons in before]
            after, dim = kept_of(cut, own)
            move_neurons(tensors[name].data, dim=dim, before=theirs, after=after, communicator=self.communicator)
        parts, self._waiting = grow(self.ownership, own, {name: tensors[name].data for name in self.ownership.cuts})
        overwrite(self.model, parts)
        self._round, self._steps, self._in_round = self._round + 1, 0, True
        restart(self.optimizer, self._make_optimizer(self.model))

    @torch.no_grad()
    def _end_round(self) -> None:
        self._leave_room()
        tensors, own = tensors_of(self.model), self._own(self._round - 1)
        parts = {name: tensors[name].data for name in self.ownership.cuts}
        overwrite(self.model, shrink(self.ownership, own, parts, self._waiting))
        uncut = [tensor for name, tensor in tensors.items() if name not in self.ownership.cuts]
        agree(self.communicator, uncut, name="uncut", averager=self.averager)
        self._waiting, self._in_round = {}, False
