"""Networks that take their time, so that something can happen to their training."""

import hashlib
import os
import time
from pathlib import Path

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


class Noting(Slow):
    """The same network, which notes in ``folder`` which rows it is trained on: one a line, a file a process."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int, *, folder: str) -> None:
        super().__init__(input_shape, num_classes)
        self._folder = folder

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Scores of the classes."""
        if self.training and "CONTAINER_ID" in os.environ:  # the driver, which is in no container, tries a step
            digests = [hashlib.sha256(row.numpy().tobytes()).hexdigest() for row in rows]
            with (Path(self._folder) / f"{os.getpid()}.rows").open("a") as notes:
                notes.writelines(f"{digest}\n" for digest in digests)
        return super().forward(rows)
