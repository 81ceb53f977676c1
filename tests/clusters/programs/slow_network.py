"""A network that takes its time, so that something can happen to its training."""

import time

import torch
from torch import nn

STEP_SECONDS = 0.1


class Slow(nn.Module):
    """Draws random numbers in each step: what is hardest to continue exactly."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        numbers = int(torch.tensor(input_shape).prod())
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(numbers, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3)
        )
        self.last = nn.Linear(16, num_classes)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Scores of the classes."""
        if self.training:
            time.sleep(STEP_SECONDS)
        scores: torch.Tensor = self.last(self.layers(rows))
        return scores
