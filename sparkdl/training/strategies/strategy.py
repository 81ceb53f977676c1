"""What a strategy answers."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim import Optimizer
from typing_extensions import override

from sparkdl.collectives import Averager, Communicator, Ring, agree, is_expanded
from sparkdl.inputs.tensors import Inputs
from sparkdl.layouts import ModelPart

__all__ = ["Sharded", "SteppingAlone", "Strategy", "kept", "restart"]


class Strategy(ABC):
    """How the replicas of one model, one on each rank, come to agree. Runs on ranks.

    The loop calls :meth:`wrap` once, and :meth:`begin_epoch` before the steps of an epoch. Each step calls
    :meth:`begin_step`, :meth:`begin_last_pass`, :meth:`finish_gradients`, then lets the optimizer step, and calls
    :meth:`after_step`; :meth:`end_epoch` and :meth:`find_statistics` follow the last step of an epoch. Between two
    steps, :meth:`consensus` may be asked for the model that all replicas stand for: what is evaluated, saved as the
    best one and registered is never a single replica. All ranks call everything in the same order, the same number of
    times, whether they have rows or not.
    """

    def __init__(self, communicator: Communicator, averager: Averager | None = None) -> None:
        self.communicator = communicator
        """The ranks that each have a replica."""
        self.averager = averager or Ring(communicator)
        """What travels between them, and where it is added up."""

    def place(self, model: nn.Module, device: torch.device) -> nn.Module:
        """Put a network where this rank computes, before :meth:`wrap`."""
        return model.to(device)

    def wrap(self, model: nn.Module, make_optimizer: Callable[[nn.Module], Optimizer]) -> tuple[nn.Module, Optimizer]:
        """Make all replicas equal to rank 0's; return what this rank trains, and its optimizer."""
        self.communicator.broadcast_module(model)
        self.model, self.optimizer = model, make_optimizer(model)
        return self.model, self.optimizer

    @property
    def replicas_differ(self) -> bool:
        """Whether replicas may have other parameters than each other now, so that a checkpoint has to hold them all."""
        return False

    @property
    def sharded(self) -> "Sharded | None":
        """What it answers besides if each rank keeps a part of the model, and nobody the whole; None otherwise.

        What is evaluated, saved and registered then lies in parts, and all ranks evaluate it together, with rows or
        without.
        """
        return None

    @property
    def needs_all_ranks(self) -> bool:
        """Whether a pass through the network in training takes all ranks, with rows or without."""
        return False

    @abstractmethod
    def row_weight(self, *, own_rows: int, global_rows: int) -> float:
        """The weight of one row's loss in a step, of which this rank has ``own_rows`` and all ranks ``global_rows``."""

    def begin_epoch(self, epoch: int) -> None:
        """Called before the first step of an epoch, counted from 0, or of what is left of it."""

    def begin_step(self) -> None:
        """Called before the first forward pass of a step: parameters may get other sizes here."""

    def begin_last_pass(self) -> None:
        """Called before the back-propagation that completes a step's gradients."""

    def finish_gradients(self) -> None:
        """Finish what must be known of the other ranks' gradients before they are clipped and applied."""

    def after_step(self) -> None:
        """Called after each optimizer step."""

    def end_epoch(self) -> None:
        """Called after the last step of an epoch."""

    def find_statistics(self, inputs: Iterable[Inputs]) -> None:
        """Called before the consensus of an epoch is evaluated: what only its forward passes tell can be found here.

        ``inputs`` are batches of two rows or more that this rank trains on; who takes none has none read.
        """

    def figures(self) -> dict[str, float]:
        """What it has measured in the epoch that has ended; all ranks call it together, and get the same."""
        return {}

    @contextmanager
    def consensus(self) -> Iterator[nn.Module]:
        """The model that all replicas stand for, for as long as the block lasts; then this rank's replica is back.

        It is the mean of all replicas, unless a strategy says otherwise.
        """
        tensors = [*self.trained.values(), *self.model.buffers()]
        with kept(tensors):
            agree(self.communicator, tensors, name="consensus")
            yield self.model

    def state(self) -> dict[str, Any]:
        """What a checkpoint has to hold of the strategy itself: tensors and plain values, the same on all ranks."""
        return {}

    def load(self, state: Mapping[str, Any] | None) -> None:
        """Go on from such a state, or begin anew with the weights of the model, the same on all ranks then.

        A rank's own parameters, in the sizes that they had when they were saved, come back after it.
        """

    @classmethod
    def assemble(cls, state: Mapping[str, Any], replicas: Iterable[Mapping[str, torch.Tensor]]) -> dict[str, Any]:
        """The weights of the consensus in a checkpoint: from its :meth:`state`, and the weights of replicas by rank.

        It is the mean of all replicas (of what has none, rank 0's), unless a strategy says otherwise.
        """
        weights: dict[str, torch.Tensor] = {}
        count = 0
        for replica in replicas:
            count += 1
            for name, value in replica.items():
                if value.is_floating_point():
                    weights[name] = weights.get(name, 0) + value.double()
                else:
                    weights.setdefault(name, value)
        return {name: value / count if value.is_floating_point() else value for name, value in weights.items()}

    def own_state(self) -> dict[str, Any]:
        """What a checkpoint has to hold of the strategy that is this rank's alone."""
        return self.averager.own_state()

    def load_own(self, own: Mapping[str, Any]) -> None:
        """Go on from what :meth:`own_state` gave; called after :meth:`load`, unless the number of ranks has changed."""
        self.averager.load_own(own)

    @property
    def trained(self) -> dict[str, nn.Parameter]:
        """The parameters that the optimizer changes, by name."""
        return {name: parameter for name, parameter in self.model.named_parameters() if parameter.requires_grad}


class Sharded(Protocol):
    """What else a strategy answers if each rank keeps a part of the model. Runs on ranks.

    A checkpoint has what :meth:`weights` and :meth:`moments` give, in each rank's shard, and the strategy's state says
    where that lies (:func:`~sparkdl.training.checkpoints.parted_checkpoint.parting_of`).
    """

    def weights(self) -> dict[str, torch.Tensor]:
        """The part of this rank, and what is whole on all, by name: the very tensors."""

    def moments(self) -> dict[str, Any]:
        """What the optimizer keeps of it: the very tensors."""

    def put(self, weights: Mapping[str, torch.Tensor], moments: Mapping[str, Any]) -> None:
        """Go on with what these two gave to the same rank of as many; called after :meth:`Strategy.load`."""

    def adopt(self, pieces: Iterable[ModelPart]) -> None:
        """Begin anew with this rank's part of a model that lies in pieces, which are looked at one after another.

        Moments in them are gone on with where they are of use.
        """


class SteppingAlone(Strategy):
    """Ranks step alone between exchanges: a rank's gradient is the mean over its own rows. It counts the steps."""

    def __init__(self, communicator: Communicator, averager: Averager | None = None) -> None:
        super().__init__(communicator, averager)
        self._steps = 0

    @override
    def row_weight(self, *, own_rows: int, global_rows: int) -> float:
        return 1 / own_rows

    @override
    def after_step(self) -> None:
        self._steps += 1

    @override
    def state(self) -> dict[str, Any]:
        return {"steps": self._steps}

    @override
    def load(self, state: Mapping[str, Any] | None) -> None:
        self._steps = state["steps"] if state else 0


@contextmanager
def kept(tensors: Iterable[torch.Tensor]) -> Iterator[None]:
    """Let tensors have other values for as long as the block lasts; expanded ones have nothing of their own."""
    found = [tensor.detach() for tensor in tensors if not is_expanded(tensor)]
    own = [tensor.clone() for tensor in found]
    try:
        yield
    finally:
        for tensor, before in zip(found, own, strict=True):
            tensor.copy_(before)


def restart(optimizer: Optimizer, fresh: Optimizer) -> None:
    """Let an optimizer begin anew, as a fresh one over the same parameters does: without moments."""
    optimizer.load_state_dict(fresh.state_dict())
