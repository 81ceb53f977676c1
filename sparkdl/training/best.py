"""Which epoch is the best one, and when a run ends early."""

import logging
import math
from collections.abc import Mapping, Sequence

from sparkdl.settings import Train
from sparkdl.settings.target import SMALLER_IS_BETTER
from sparkdl.training.tasks import Task

__all__ = ["is_better", "is_over", "seconds_to_target"]

log = logging.getLogger(__name__)


def is_over(history: Sequence[Mapping[str, float]], settings: Train, task: Task) -> bool:
    """Whether an epoch has reached the target, or no epoch has been better for ``patience`` epochs."""
    history = history[_first_that_counts(settings) :]
    if settings.target is not None and any(map(settings.target.reached, history)):
        return True
    if settings.patience is None or not history:
        return False
    merits = [_merit(figures, settings, task) for figures in history]
    return len(merits) > settings.patience + merits.index(max(merits))


def is_better(
    figures: Mapping[str, float], history: Sequence[Mapping[str, float]], best: int, settings: Train, task: Task
) -> bool:
    """Whether the epoch after a history is better than the ``best`` epoch in it.

    Without a validation split, the newest epoch is the best one.
    """
    if len(history) <= _first_that_counts(settings):
        return True
    return _merit(figures, settings, task) >= _merit(history[best], settings, task)


def seconds_to_target(history: Sequence[Mapping[str, float]], settings: Train) -> float | None:
    """The seconds of all epochs up to the one that reached the target; None if none did."""
    if settings.target is None:
        return None
    seconds = 0.0
    for number, figures in enumerate(history):
        seconds += figures["seconds"]
        if number >= _first_that_counts(settings) and settings.target.reached(figures):
            return seconds
    log.warning("no epoch reached the target: %s %g", settings.target.metric, settings.target.value)
    return None


def _first_that_counts(settings: Train) -> int:
    """The first epoch, from 0, that may be the best one: before it, pruning still removes weights."""
    return settings.sparser.end_epoch if settings.sparser else 0


def _merit(figures: Mapping[str, float], settings: Train, task: Task) -> float:
    name = settings.best_by or task.best_by
    value = figures.get(f"validation_{name}", 0.0)
    if math.isnan(value):
        return -math.inf
    return -value if name in SMALLER_IS_BETTER else value
