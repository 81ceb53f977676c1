"""Batch size and learning rate when the number of ranks differs from the one that the recipe was written for."""

import math
from dataclasses import dataclass

from sparkdl.settings import Train

__all__ = ["Batching", "batching"]


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
