"""Precision, recall and F1 of each class, from what ranks and batches add up."""

import csv
import io
from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

__all__ = ["ByClass"]


class ByClass(NamedTuple):
    """Of each class by its index: the weight of rows, and at the end how many rows."""

    right: NDArray[np.float64]
    """Predicted, and rightly so."""
    predicted: NDArray[np.float64]
    true: NDArray[np.float64]
    rows: NDArray[np.float64]

    @classmethod
    def of(cls, counts: NDArray[np.float64]) -> Self:
        """From the four after one another."""
        return cls(*counts.reshape(4, -1))

    @property
    def precision(self) -> NDArray[np.float64]:
        """The right ones among the predictions; 0 without one, as with scikit-learn."""
        return _over(self.right, self.predicted)

    @property
    def recall(self) -> NDArray[np.float64]:
        """The right ones among the rows of the class; 0 without one."""
        return _over(self.right, self.true)

    @property
    def f1(self) -> NDArray[np.float64]:
        """The harmonic mean of both."""
        return _over(2 * self.right, self.predicted + self.true)

    @property
    def macro_f1(self) -> float:
        """The mean of F1 over the classes that have a row or a prediction."""
        met = (self.predicted + self.true) > 0
        return float(self.f1[met].mean()) if met.any() else 0.0

    def to_csv(self, class_names: Sequence[str]) -> str:
        """A line for each class."""
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        table.writerow(["class", "precision", "recall", "f1", "rows"])
        for name, *scores, rows in zip(class_names, self.precision, self.recall, self.f1, self.rows, strict=True):
            table.writerow([name, *(f"{score:.6g}" for score in scores), int(rows)])
        return text.getvalue()


def _over(part: NDArray[np.float64], whole: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)
