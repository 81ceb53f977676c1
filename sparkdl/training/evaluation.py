"""Exact figures of a model on one split. Runs on ranks.

Every rank evaluates its own rows; sums, not means, are added up over the ranks in float64, so that the figures do not
depend on how many ranks there were.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sparkdl.collectives import Communicator
from sparkdl.data import Batch
from sparkdl.training.losses import Loss
from sparkdl.training.strategies.layer_by_layer import LayerByLayer
from sparkdl.training.tasks import Task

__all__ = ["Evaluation", "add_up", "evaluate", "evaluation_of"]


@dataclass(frozen=True)
class Evaluation:
    """What was found on one split."""

    figures: dict[str, float]
    """``loss``, the mean over all rows without label smoothing, and the task's own. Rows count by their weights."""
    rows: int
    counts: NDArray[np.float64]
    """What :meth:`Task.pictures` draws, and :meth:`Task.table` tells."""


def evaluate(
    model: nn.Module,
    batches: Iterable[Batch],
    *,
    task: Task,
    loss: Loss,
    communicator: Communicator,
    device: torch.device,
    context: AbstractContextManager[Any],
) -> Evaluation:
    """Evaluate the model on the rows that all ranks hold together; every rank gets the same result."""
    sums = add_up(model, batches, task=task, loss=loss, device=device, context=context)
    return evaluation_of(communicator.all_reduce(sums, op="sum"), task)


@torch.no_grad()
def add_up(
    model: nn.Module,
    batches: Iterable[Batch],
    *,
    task: Task,
    loss: Loss,
    device: torch.device,
    context: AbstractContextManager[Any],
) -> torch.Tensor:
    """Sums over rows, float64, that can be added to those of other rows.

    They are loss, what rows count in it, weight, rows, figures, counts.
    """
    model.eval()
    together = isinstance(model, LayerByLayer)  # which ranks without rows call, too
    loss_sum, loss_weight, weight, rows = torch.zeros(4, 1, dtype=torch.float64, device=device)
    sums = torch.zeros(task.sum_size, dtype=torch.float64, device=device)
    counts = torch.zeros(task.count_size, dtype=torch.float64, device=device)
    with context:
        for batch in batches:
            if not len(batch.labels) and not together:
                continue
            outputs = model(batch.inputs.to(device, non_blocking=True))
            if not len(batch.labels):
                continue
            labels = batch.labels.to(device, non_blocking=True)
            weights = None if batch.weights is None else batch.weights.to(device, non_blocking=True)
            for total, more in zip((loss_sum, loss_weight), loss.add_up(outputs, labels, weights), strict=True):
                total += more
            weight += len(labels) if weights is None else weights.double().sum()
            rows += len(labels)
            sums += task.sums(outputs, labels, weights)
            task.count(counts, outputs, labels, weights)
    return torch.cat([loss_sum, loss_weight, weight, rows, sums, counts])


def evaluation_of(sums: torch.Tensor, task: Task) -> Evaluation:
    """The figures of a split from the sums over its rows."""
    totals, counts = sums.split([sums.numel() - task.count_size, task.count_size])
    loss, loss_weight, weight, rows, *of_rows = totals.tolist()
    found = counts.cpu().numpy()
    figures = {"loss": loss / loss_weight, **task.figures(of_rows, weight), **task.counted_figures(found, weight)}
    return Evaluation(figures, int(rows), found)
