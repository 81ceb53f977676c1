"""The interface of strategies."""

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
    """How the replicas of one model, one on each rank, are synchronised. Runs on ranks.

    The loop calls :meth:`wrap` once, and :meth:`begin_epoch` before the steps of an epoch. Each step calls
    :meth:`begin_step`, :meth:`begin_last_pass`, :meth:`finish_gradients`, then lets the optimizer step, and calls
    :meth:`after_step`; :meth:`end_epoch` and :meth:`find_statistics` follow the last step of an epoch. Between two
    steps, :meth:`consensus` gives the one model that the replicas represent: this model, never a single replica, is
    evaluated, saved as the best one and registered. All ranks call all methods in the same order and equally often,
    whether they have rows or not.
    """

    def __init__(self, communicator: Communicator, averager: Averager | None = None) -> None:
        self.communicator = communicator
        """The ranks that each have a replica."""
        self.averager = averager or Ring(communicator)
        """How tensors are averaged over these ranks: compression and topology."""

    def place(self, model: nn.Module, device: torch.device) -> nn.Module:
        """Move a network to this rank's device, before :meth:`wrap`."""
        return model.to(device)

    def wrap(self, model: nn.Module, make_optimizer: Callable[[nn.Module], Optimizer]) -> tuple[nn.Module, Optimizer]:
        """Make all replicas equal to rank 0's; returns the model that this rank trains, and its optimizer."""
        self.communicator.broadcast_module(model)
        self.model, self.optimizer = model, make_optimizer(model)
        return self.model, self.optimizer

    @property
    def replicas_differ(self) -> bool:
        """Whether replicas may differ in their parameters now, so that a checkpoint has to hold them all."""
        return False

    @property
    def sharded(self) -> "Sharded | None":
        """The further interface of a strategy in which each rank keeps a part of the model; None otherwise.

        The model that is evaluated, saved and registered is then split over ranks, and all ranks evaluate it together,
        whether they have rows or not.
        """
        return None

    @property
    def needs_all_ranks(self) -> bool:
        """Whether all ranks have to take part in every pass of training, even without rows."""
        return False

    @abstractmethod
    def row_weight(self, *, own_rows: int, global_rows: int) -> float:
        """The weight of one row's loss in a step, of which this rank has ``own_rows`` and all ranks ``global_rows``."""

    def begin_epoch(self, epoch: int) -> None:
        """Called before the first step of an epoch (counted from 0), or of the rest of a resumed one."""

    def begin_step(self) -> None:
        """Called before the first forward pass of a step; may change the sizes of parameters."""

    def begin_last_pass(self) -> None:
        """Called before the back-propagation that completes a step's gradients."""

    def finish_gradients(self) -> None:
        """Complete the exchange of gradients, before they are clipped and applied."""

    def after_step(self) -> None:
        """Called after each optimizer step."""

    def end_epoch(self) -> None:
        """Called after the last step of an epoch."""

    def find_statistics(self, inputs: Iterable[Inputs]) -> None:
        """Called before the consensus of an epoch is evaluated, to compute statistics of its forward passes.

        ``inputs`` are batches of two rows or more of this rank's training rows, read only as they are taken.
        """

    def figures(self) -> dict[str, float]:
        """What the strategy has measured in the last epoch, the same on all ranks. All ranks call it together."""
        return {}

    @contextmanager
    def consensus(self) -> Iterator[nn.Module]:
        """The model that the replicas represent, within the block; after it, this rank's replica is restored.

        By default, it is the mean of all replicas.
        """
        tensors = [*self.trained.values(), *self.model.buffers()]
        with kept(tensors):
            agree(self.communicator, tensors, name="consensus")
            yield self.model

    def state(self) -> dict[str, Any]:
        """The strategy's state for a checkpoint: tensors and plain values, the same on all ranks."""
        return {}

    def load(self, state: Mapping[str, Any] | None) -> None:
        """Resume from a state of :meth:`state`, or, with None, start anew from the model's weights, equal on all ranks.

        A rank's own parameters, in the sizes that they had when they were saved, are restored after this call.
        """

    @classmethod
    def assemble(cls, state: Mapping[str, Any], replicas: Iterable[Mapping[str, torch.Tensor]]) -> dict[str, Any]:
        """The weights of the consensus in a checkpoint, from its :meth:`state` and the replicas' weights by rank.

        By default, it is the mean of all replicas; tensors without a mean, such as integers, are rank 0's.
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
        """The rank's own part of the strategy's state for a checkpoint."""
        return self.averager.own_state()

    def load_own(self, own: Mapping[str, Any]) -> None:
        """Restore the result of :meth:`own_state`; called after :meth:`load` if the number of ranks is the same."""
        self.averager.load_own(own)

    @property
    def trained(self) -> dict[str, nn.Parameter]:
        """The trainable parameters, by name."""
        return {name: parameter for name, parameter in self.model.named_parameters() if parameter.requires_grad}


class Sharded(Protocol):
    """The further interface of strategies in which each rank keeps a part of the model. Runs on ranks.

    In a checkpoint, each rank's shard has the results of :meth:`weights` and :meth:`moments`, and the strategy's state
    describes the parts (:func:`~sparkdl.training.checkpoints.parted_checkpoint.parting_of`).
    """

    def weights(self) -> dict[str, torch.Tensor]:
        """By name, the tensors of this rank's part and those that all ranks have whole, not copied."""

    def moments(self) -> dict[str, Any]:
        """The optimizer's state of this rank's part, not copied."""

    def put(self, weights: Mapping[str, torch.Tensor], moments: Mapping[str, Any]) -> None:
        """Restore both on the same rank of as many ranks; called after :meth:`Strategy.load`."""

    def adopt(self, pieces: Iterable[ModelPart]) -> None:
        """Start anew with this rank's part of a model that was split in another way, read piece by piece.

        Moments in the pieces are used if the strategy keeps moments.
        """


class SteppingAlone(Strategy):
    """Ranks step alone between exchanges: a rank's gradient is the mean over its own rows. Counts the steps."""

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
    """Restore the values of tensors after the block, except of expanded tensors, which have no storage of their own."""
    found = [tensor.detach() for tensor in tensors if not is_expanded(tensor)]
    own = [tensor.clone() for tensor in found]
    try:
        yield
    finally:
        for tensor, before in zip(found, own, strict=True):
            tensor.copy_(before)


def restart(optimizer: Optimizer, fresh: Optimizer) -> None:
    """Reset an optimizer to the state of a fresh one over the same parameters."""
    optimizer.load_state_dict(fresh.state_dict())
