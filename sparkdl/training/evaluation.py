"""Exact figures of a model on one split. Runs on ranks.

Every rank evaluates its own rows; sums, not means, are added up over the ranks in float64, so that the figures do not
depend on how many ranks there were.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from sparkdl.collectives import Communicator
from sparkdl.data import Batch
from sparkdl.settings import Train
from sparkdl.training.recipe import Loss

__all__ = ["Evaluation", "add_up", "evaluate", "evaluation_of", "has_reached", "merit"]

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
    sums = add_up(model, batches, loss=loss, num_classes=num_classes, device=device, context=context)
    return evaluation_of(communicator.all_reduce(sums, op="sum"), num_classes=num_classes)


@torch.no_grad()
def add_up(
    model: nn.Module,
    batches: Iterable[Batch],
    *,
    loss: Loss,
    num_classes: int,
    device: torch.device,
    context: AbstractContextManager[Any],
) -> torch.Tensor:
    """Sums over rows, float64, that can be added to those of other rows: loss, correct answers, rows, confusion."""
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
    return torch.cat([sums, confusion])


def evaluation_of(sums: torch.Tensor, *, num_classes: int) -> Evaluation:
    """The figures of a split from the sums over its rows."""
    total = sums.cpu()
    loss_sum, correct, rows = total[:3].tolist()
    matrix = total[3:].reshape(num_classes, num_classes).long().tolist() if len(total) > 3 else None
    return Evaluation(loss_sum / rows, correct / rows, int(rows), matrix)


def has_reached(history: Sequence[Mapping[str, float]], settings: Train) -> bool:
    """Whether an epoch has reached what the run was to reach, so that there is nothing left to do."""
    return settings.target is not None and any(map(settings.target.reached, history))


def merit(figures: Mapping[str, float], settings: Train) -> float:
    """What makes one epoch better than another; without a validation split every epoch is better than the last."""
    if settings.best_by == "loss":
        loss = figures.get("validation_loss", 0.0)
        return -math.inf if math.isnan(loss) else -loss
    return figures.get("validation_accuracy", 0.0)
