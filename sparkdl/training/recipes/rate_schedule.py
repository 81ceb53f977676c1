"""The learning rates of the steps of an epoch, on however many ranks they are taken. Runs on ranks."""

from math import ceil

from sparkdl.settings import Train
from sparkdl.training.recipes.recipe import rate_at

__all__ = ["RateSchedule"]


class RateSchedule:
    """The learning rates of the remaining steps of an epoch, which do not depend on who took the steps before."""

    def __init__(self, settings: Train, *, epoch: int, rows: int, rows_left: int, steps: int, reference: int) -> None:
        """For ``steps`` over the rows of an epoch that are left; ``reference``: the ranks that the rates are for."""
        self._settings, self._steps, self._reference = settings, steps, reference
        self._per_epoch = ceil(ceil(ceil(rows / reference) / settings.batch_size) / settings.accumulation)
        self._done = 1 - rows_left / rows
        self._begin = self._per_epoch * (epoch + self._done)

    def rate(self, number: int) -> float:
        """The learning rate of a step."""
        step = self._step(number)
        return rate_at(self._settings, step, steps_per_epoch=self._per_epoch, size=self._reference)

    def epochs(self, number: int) -> float:
        """The number of epochs, with fractions, before a step."""
        return self._step(number) / self._per_epoch

    def _step(self, number: int) -> float:
        """The number of steps before a step, in steps of ``reference`` ranks."""
        return self._begin + self._per_epoch * number / self._steps * (1 - self._done)
