"""Rows of a batch: in training, also when the number of ranks differs from the recipe's, and in evaluation."""

import math
from dataclasses import dataclass

from sparkdl.settings import Train
from sparkdl.training.tasks import Task

__all__ = ["Batching", "batching", "evaluation_batch"]

EVALUATION_ROWS = 512


@dataclass(frozen=True)
class Batching:
    """The batches of one rank in a step."""

    batch_size: int
    """Rows of a batch."""
    accumulation: int
    """Batches of a step."""
    rate_factor: float
    """The factor on the recipe's learning rate."""


def batching(settings: Train, *, size: int, reference: int) -> Batching:
    """The batches of each of ``size`` ranks, for a recipe that was written for ``reference`` ranks.

    ``keep_batch`` keeps the number of rows of a step, rounded up so that all batches are equal; no batch is larger than
    the recipe's. ``scale_rate`` is the linear scaling rule (Goyal et al., 2017, arXiv 1706.02677).
    """
    if size == reference:
        return Batching(settings.batch_size, settings.accumulation, 1.0)
    if settings.on_resize == "scale_rate":
        return Batching(settings.batch_size, settings.accumulation, size / reference)
    rows = math.ceil(settings.batch_size * settings.accumulation * reference / size)
    accumulation = math.ceil(rows / settings.batch_size)
    return Batching(math.ceil(rows / accumulation), accumulation, 1.0)


def evaluation_batch(settings: Train, task: Task) -> int:
    """Rows of a batch in evaluation: more than in training, because no gradients are kept.

    Exceptions are groups, which may have many rows each, language models, with logits for every token, and networks
    for which memory is scarce.
    """
    small = settings.in_parts or task.name in ("ranking", "language_modelling")
    return settings.batch_size if small else max(settings.batch_size, EVALUATION_ROWS)
