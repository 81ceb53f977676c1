"""Exact figures of a model on one split. Runs on ranks.

Every rank evaluates its own rows; sums, not means, are added up over the ranks in float64, so that the figures do not
depend on how many ranks there were.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from sparkdl.collectives import Communicator
from sparkdl.data import Batch
from sparkdl.training.recipe import Loss

__all__ = ["Evaluation", "evaluate"]

LARGEST_CONFUSION = 1000  # classes; beyond, a matrix of all pairs is neither readable nor cheap to add up


@dataclass(frozen=True)
class Evaluation:
    """The figures of one split."""

    loss: float
    """Mean over all rows, without label smoothing."""
    accuracy: float
    rows: int
    confusion: list[list[int]] | None
    """``confusion[i][j]``: rows of class i that were taken for class j; None beyond 1,000 classes."""


@torch.no_grad()
def evaluate(
    model: nn.Module,
    batches: Iterable[Batch],
    *,
    loss: Loss,
    num_classes: int,
    communicator: Communicator,
    device: torch.device,
    context: AbstractContextManager[Any],
) -> Evaluation:
    """Evaluate the model on the rows that all ranks hold together; every rank gets the same result."""
    model.eval()
    sums = torch.zeros(3, dtype=torch.float64, device=device)
    cells = num_classes**2 if num_classes <= LARGEST_CONFUSION else 0
    confusion = torch.zeros(cells, dtype=torch.float64, device=device)
    with context:
        for batch in batches:
            if not len(batch.labels):
                continue
            labels = batch.labels.to(device, non_blocking=True)
            outputs = model(batch.inputs.to(device, non_blocking=True))
            predicted = outputs.argmax(dim=1)
            sums[0] += loss(outputs, labels).double() * len(labels)
            sums[1] += (predicted == labels).sum()
            sums[2] += len(labels)
            if cells:
                confusion += torch.bincount(labels * num_classes + predicted, minlength=cells)
    total = communicator.all_reduce(torch.cat([sums, confusion]), op="sum").cpu()
    loss_sum, correct, rows = total[:3].tolist()
    matrix = total[3:].reshape(num_classes, num_classes).long().tolist() if cells else None
    return Evaluation(loss_sum / rows, correct / rows, int(rows), matrix)
