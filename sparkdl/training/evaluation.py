"""Exact figures of a model on one split. Runs on ranks.

Every rank evaluates its own rows; sums, not means, are added up over the ranks in float64, so that the figures do not
depend on how many ranks there were.
"""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sparkdl.collectives import Communicator
from sparkdl.data import Batch
from sparkdl.inputs.tensors import answer, moved, stand_in
from sparkdl.models import logits_of
from sparkdl.training.recipes.losses import Loss
from sparkdl.training.tasks import Task
from sparkdl.training.tasks.areas import Scores, joined

__all__ = ["Evaluation", "Sums", "add_up", "evaluate", "evaluation_of"]


@dataclass(frozen=True)
class Evaluation:
    """The result of evaluating one split."""

    figures: dict[str, float]
    """The task's figures and ``loss``, the mean over all rows without label smoothing. Rows count by their weights."""
    rows: int
    counts: NDArray[np.float64]
    """The counts for :meth:`Task.pictures` and :meth:`Task.table`."""


class Sums(NamedTuple):
    """The sums over one part of the rows: those of a rank, or of a portion."""

    added: torch.Tensor
    """float64, added up over parts: loss, the rows' weight in the loss, weight, rows, figures, counts."""
    points: torch.Tensor
    """float64, of shape (3, points), concatenated over parts; see :class:`Scores`."""


def evaluate(
    model: nn.Module,
    batches: Iterable[Batch],
    *,
    task: Task,
    loss: Loss,
    communicator: Communicator,
    device: torch.device,
    context: AbstractContextManager[Any],
    together: bool = False,
) -> Evaluation:
    """Evaluate the model on the rows of all ranks; every rank gets the same result.

    ``together``: all ranks take part in every pass, and call the model equally often, with rows or without.
    """
    sums = add_up(
        model,
        batches,
        task=task,
        loss=loss,
        device=device,
        context=context,
        parts=communicator.size,
        together=together,
    )
    added = communicator.all_reduce(sums.added, op="sum")
    points = communicator.all_gather_object(sums.points.cpu()) if task.has_curves else [sums.points.cpu()]
    return evaluation_of(added, points, task)


@torch.no_grad()
def add_up(
    model: nn.Module,
    batches: Iterable[Batch],
    *,
    task: Task,
    loss: Loss,
    device: torch.device,
    context: AbstractContextManager[Any],
    parts: int,
    together: bool = False,
) -> Sums:
    """The sums over some rows, which are one of ``parts`` parts. See :func:`evaluate`."""
    model.eval()
    loss_sum, loss_weight, weight, rows = torch.zeros(4, 1, dtype=torch.float64, device=device)
    sums = torch.zeros(task.sum_size, dtype=torch.float64, device=device)
    counts = torch.zeros(task.count_size, dtype=torch.float64, device=device)
    scores = Scores(parts=parts, device=device)
    with context:
        for batch in batches:
            if not len(batch.labels):
                if together:
                    answer(model, moved(stand_in(batch.inputs), device))
                continue
            inputs = moved(batch.inputs, device)
            answered = answer(model, inputs)
            labels = batch.labels.to(device, non_blocking=True)
            weights = None if batch.weights is None else batch.weights.to(device, non_blocking=True)
            of_rows = loss.add_up(answered, labels, weights, inputs=inputs)
            for total, more in zip((loss_sum, loss_weight), of_rows, strict=True):
                total += more
            outputs = logits_of(answered)
            weight += len(labels) if weights is None else weights.double().sum()
            rows += len(labels)
            sums += task.sums(outputs, labels, weights)
            task.count(counts, outputs, labels, weights)
            if task.has_curves:
                scores.add(outputs, labels, weights)
    return Sums(torch.cat([loss_sum, loss_weight, weight, rows, sums, counts]), scores.points())


def evaluation_of(added: torch.Tensor, points: Sequence[torch.Tensor], task: Task) -> Evaluation:
    """The figures of a split, from the sums over its parts and the points of each part."""
    totals, counts = added.split([added.numel() - task.count_size, task.count_size])
    loss, loss_weight, weight, rows, *of_rows = totals.tolist()
    found = torch.cat([counts.cpu(), joined(points).flatten()]).numpy()
    figures = {"loss": loss / loss_weight, **task.figures(of_rows, weight), **task.counted_figures(found, weight)}
    return Evaluation(figures, int(rows), found)
