"""What a stage has to know of the training rows: sums and counts, which tasks find in parts and Spark adds up."""

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
    """What was found of all training rows."""

    sums: ExactSums
    counts: Mapping[int, Mapping[str, int]]
    """By place, how often each text is there; a place without texts may be missing."""


class Wanted(NamedTuple):
    """Which counts are of use; others need not come to the driver."""

    most: int | None = None
    """So many texts of a place at most: those that are most frequent, and of equally frequent ones those that come
    first by their letters."""
    at_least: int = 1
    """Those that are there so often."""


class Learner(ABC):
    """A stage that is yet to be fitted. Small; goes to tasks."""

    @property
    def wanted(self) -> Wanted:
        """Which of what :meth:`texts` counts."""
        return Wanted()

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns that it learns from."""
        return names_in(self, "input")

    @property
    def writes(self) -> tuple[str, ...]:
        """The columns that the fitted stages add."""
        return names_in(self, "output")

    def sums(self, columns: dict[str, Column]) -> ExactSums:
        """What is added up of some rows. Runs in a task."""
        return np.zeros((2, 0))

    def texts(self, columns: dict[str, Column]) -> Sequence[pa.Array]:
        """What is counted of some rows, by place: texts, each as often as it counts. Runs in a task."""
        return ()

    @abstractmethod
    def learn(self, facts: Facts) -> tuple["FittedStage | Learner", ...]:
        """The fitted stages, or what has to look at the rows once more. Runs on the driver.

        Raises :class:`~sparkdl.errors.DataError` for rows that there is nothing to learn from.
        """


def most_frequent_first(counts: Mapping[str, int]) -> list[str]:
    """Texts in the order of how often they are there, and of their letters where that is equal."""
    return sorted(counts, key=lambda text: (-counts[text], text))
