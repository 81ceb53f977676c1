"""What a strategy answers."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import nn
from torch.optim import Optimizer

from sparkdl.collectives import Averager, Communicator, Ring, agree, is_expanded

__all__ = ["Strategy", "kept"]


class Strategy(ABC):
    """How the replicas of one model, one on each rank, come to agree. Runs on ranks.

    The loop calls :meth:`wrap` once. Each step calls :meth:`begin_last_pass`, :meth:`finish_gradients`, then lets the
    optimizer step, and calls :meth:`after_step`; :meth:`end_epoch` follows the last step of an epoch. Between two
    steps, :meth:`consensus` may be asked for the model that all replicas stand for: what is evaluated, saved as the
    best one and registered is never a single replica. All ranks call everything in the same order, the same number of
    times, whether they have rows or not.
    """

    replicas_differ: ClassVar[bool] = False
    """Whether replicas may have other parameters than each other between two steps, so that a checkpoint has to hold
    those of all ranks."""

    def __init__(self, communicator: Communicator, averager: Averager | None = None) -> None:
        self.communicator = communicator
        """The ranks that each have a replica."""
        self.averager = averager or Ring(communicator)
        """What travels between them, and where it is added up."""

    def wrap(self, model: nn.Module, make_optimizer: Callable[[nn.Module], Optimizer]) -> tuple[nn.Module, Optimizer]:
        """Make all replicas equal to rank 0's; return what this rank trains, and its optimizer."""
        self.communicator.broadcast_module(model)
        self.model, self.optimizer = model, make_optimizer(model)
        return self.model, self.optimizer

    @abstractmethod
    def row_weight(self, *, own_rows: int, global_rows: int) -> float:
        """The weight of one row's loss in a step, of which this rank has ``own_rows`` and all ranks ``global_rows``."""

    def begin_last_pass(self) -> None:
        """Called before the back-propagation that completes a step's gradients."""

    def finish_gradients(self) -> None:
        """Finish what must be known of the other ranks' gradients before they are clipped and applied."""

    def after_step(self) -> None:
        """Called after each optimizer step."""

    def end_epoch(self) -> None:
        """Called after the last step of an epoch."""

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
        """What a checkpoint has to hold of the strategy itself: tensors and plain values, the same on all ranks.

        Where the consensus is not the mean of replicas that differ, its parameters stand under ``consensus``.
        """
        return {}

    def load(self, state: Mapping[str, Any] | None) -> None:
        """Go on from such a state, or begin anew with the weights of the model, the same on all ranks then."""

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
