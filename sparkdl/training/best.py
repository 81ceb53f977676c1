"""Which epoch is better than another, and when a run has nothing left to do."""

import math
from collections.abc import Mapping, Sequence

from sparkdl.settings import Train
from sparkdl.settings.train import SMALLER_IS_BETTER
from sparkdl.training.tasks import Task

__all__ = ["is_over", "merit"]


def is_over(history: Sequence[Mapping[str, float]], settings: Train, task: Task) -> bool:
    """Whether an epoch has reached what the run was to reach, or nothing has become better for too long."""
    if settings.target is not None and any(map(settings.target.reached, history)):
        return True
    if settings.patience is None or not history:
        return False
    merits = [merit(figures, settings, task) for figures in history]
    return len(merits) > settings.patience + merits.index(max(merits))


def merit(figures: Mapping[str, float], settings: Train, task: Task) -> float:
    """What makes one epoch better than another; without a validation split every epoch is better than the last."""
    name = settings.best_by or task.best_by
    value = figures.get(f"validation_{name}", 0.0)
    if math.isnan(value):
        return -math.inf
    return -value if name in SMALLER_IS_BETTER else value
