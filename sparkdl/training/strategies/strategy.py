"""What a strategy answers."""

from abc import ABC, abstractmethod

from torch import nn

from sparkdl.collectives import Communicator

__all__ = ["Strategy"]


class Strategy(ABC):
    """How the replicas of one model, one on each rank, come to the same weights. Runs on ranks."""

    def __init__(self, collectives: Communicator) -> None:
        self.collectives = collectives

    @abstractmethod
    def start(self, model: nn.Module) -> None:
        """Make all replicas equal to rank 0's."""

    @abstractmethod
    def begin_last_pass(self) -> None:
        """Called before the back-propagation that completes a step's gradients."""

    @abstractmethod
    def reduce_gradients(self) -> None:
        """Finish what must be known of the other ranks' gradients before they are clipped and applied."""

    @abstractmethod
    def agree(self, model: nn.Module) -> None:
        """Make all replicas equal: before an evaluation and before a checkpoint."""
