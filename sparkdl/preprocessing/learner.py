"""Learners: stages that are fitted from sums and counts of the training rows, which Spark adds up over tasks."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from sparkdl.preprocessing.stage import FittedStage, names_in
from sparkdl.preprocessing.sums import ExactSums
from sparkdl.preprocessing.values import Column

__all__ = ["Facts", "Learner", "Wanted", "most_frequent_first"]


class Facts(NamedTuple):
    """The sums and counts of all training rows."""

    sums: ExactSums
    counts: Mapping[int, Mapping[str, int]]
    """The frequency of each text, by index in :meth:`Learner.texts`; an index without texts may be missing."""


class Wanted(NamedTuple):
    """The counts that a learner needs; others are not sent to the driver."""

    most: int | None = None
    """The largest number of texts per index: the most frequent ones, and in alphabetical order if equally frequent."""
    at_least: int = 1
    """The lowest frequency of a text."""


class Learner(ABC):
    """A stage that is not fitted yet. Small; sent to tasks."""

    @property
    def wanted(self) -> Wanted:
        """The needed counts of :meth:`texts`; by default all."""
        return Wanted()

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns from which the stage is fitted."""
        return names_in(self, "input")

    @property
    def writes(self) -> tuple[str, ...]:
        """The columns that the fitted stages add."""
        return names_in(self, "output")

    def sums(self, columns: dict[str, Column]) -> ExactSums:
        """Sums over some rows. Runs in a task."""
        return np.zeros((2, 0))

    def texts(self, columns: dict[str, Column]) -> Sequence[pa.Array]:
        """Arrays of texts of some rows, whose frequencies are counted for each array. Runs in a task."""
        return ()

    @abstractmethod
    def learn(self, facts: Facts) -> tuple["FittedStage | Learner", ...]:
        """The fitted stages, or learners that need another pass over the rows. Runs on the driver.

        Raises :class:`~sparkdl.errors.DataError` if the rows have no values to learn from.
        """


def most_frequent_first(counts: Mapping[str, int]) -> list[str]:
    """Texts by descending frequency; equally frequent ones in alphabetical order."""
    return sorted(counts, key=lambda text: (-counts[text], text))
