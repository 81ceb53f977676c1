"""Precision, recall and F1 of each class, from counts that are summed over batches and ranks."""

import csv
import io
from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

__all__ = ["ByClass"]


class ByClass(NamedTuple):
    """Counts by class index: the first three are sums of the rows' weights, ``rows`` is a number of rows."""

    right: NDArray[np.float64]
    """The rows of a class that are predicted as such."""
    predicted: NDArray[np.float64]
    true: NDArray[np.float64]
    rows: NDArray[np.float64]

    @classmethod
    def of(cls, counts: NDArray[np.float64]) -> Self:
        """From the four fields, concatenated in their order."""
        return cls(*counts.reshape(4, -1))

    @property
    def precision(self) -> NDArray[np.float64]:
        """The share of right predictions among all predictions of a class; 0 if there are none, as in scikit-learn."""
        return _over(self.right, self.predicted)

    @property
    def recall(self) -> NDArray[np.float64]:
        """The share of right predictions among the rows of a class; 0 if there are none."""
        return _over(self.right, self.true)

    @property
    def f1(self) -> NDArray[np.float64]:
        """The harmonic mean of precision and recall."""
        return _over(2 * self.right, self.predicted + self.true)

    @property
    def macro_f1(self) -> float:
        """The mean F1 of the classes that have at least one row or prediction."""
        met = (self.predicted + self.true) > 0
        return float(self.f1[met].mean()) if met.any() else 0.0

    def to_csv(self, class_names: Sequence[str]) -> str:
        """A CSV table with a line for each class."""
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        table.writerow(["class", "precision", "recall", "f1", "rows"])
        for name, *scores, rows in zip(class_names, self.precision, self.recall, self.f1, self.rows, strict=True):
            table.writerow([name, *(f"{score:.6g}" for score in scores), int(rows)])
        return text.getvalue()


def _over(part: NDArray[np.float64], whole: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)
