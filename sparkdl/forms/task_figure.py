"""The figure of a task that a network reaches on held-out rows. Runs in tasks."""

from collections.abc import Iterable
from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import nn

from sparkdl.data import Batch
from sparkdl.data.model_card import ModelCard
from sparkdl.settings import Train
from sparkdl.settings.target import SMALLER_IS_BETTER
from sparkdl.training.evaluation import add_up, evaluation_of
from sparkdl.training.recipes.losses import build_loss
from sparkdl.training.tasks import create_task

__all__ = ["TaskFigure", "loss_of", "measure"]


class TaskFigure(NamedTuple):
    """What a network reaches."""

    name: str
    """The task's own figure: ``accuracy``, ``r2``."""
    value: float
    rows: int


def measure(network: nn.Module, card: ModelCard, batches: Iterable[Batch]) -> TaskFigure:
    """The figure by which epochs of the task are compared, of these rows."""
    task = create_task(card, link=card.link)
    device, context = torch.device("cpu"), nullcontext()
    loss = build_loss(Train(), task)
    sums = add_up(network, batches, task=task, loss=loss, device=device, context=context, parts=1)
    found = evaluation_of(sums.added, [sums.points], task)
    return TaskFigure(task.best_by, float(found.figures[task.best_by]), found.rows)


def loss_of(name: str, original: float, figure: float) -> float:
    """How much of a figure a form has lost; of one that is better when smaller (perplexity), which part of it."""
    return figure / original - 1 if name in SMALLER_IS_BETTER else original - figure
