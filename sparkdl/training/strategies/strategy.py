"""What a strategy answers."""

from abc import ABC, abstractmethod

import torch
from torch import nn

from sparkdl.collectives import Collectives

__all__ = ["Strategy"]


class Strategy(ABC):
    """How the replicas of one model, one on each rank, come to the same weights. Runs on ranks."""

    def __init__(self, collectives: Collectives) -> None:
        self.collectives = collectives

    @abstractmethod
    def start(self, model: nn.Module, optimizer: torch.optim.Optimizer, *, accumulation: int) -> torch.optim.Optimizer:
        """Make all replicas equal to rank 0's and return the optimizer to train with."""

    @abstractmethod
    def reduce_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        """Finish what must be known of the other ranks' gradients before they are clipped and applied."""

    @abstractmethod
    def apply(self, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler) -> None:
        """Take one optimizer step."""

    @abstractmethod
    def agree(self, model: nn.Module) -> None:
        """Make all replicas equal: before an evaluation and before a checkpoint."""
