"""The areas under the curves of two classes, from a histogram that ranks and batches add up.

Its cells are narrow where most scores are: the margin z of the logits lies at z / (1 + |z|) between -1 and 1, which is
cut into equal cells, of 0.00003 at z = 0, 0.0003 at z = 2 and 0.004 at z = 10. Rows of one cell count as ties. So the
area under the ROC curve agrees with scikit-learn's to 1e-4. That under the precision-recall curve does, too, unless
rows crowd in few cells, all saturated or with nearly the same score: then to 0.003.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["CELLS", "ThresholdCurves", "cells", "curves"]

CELLS = 1 << 16
"""As many numbers for each class: half a megabyte, which ranks add up once for each evaluation."""


class ThresholdCurves(NamedTuple):
    """Of the thresholds between all scores, the highest first; the positive class is the second one."""

    false_positives: NDArray[np.float64]
    """The share of the negative rows that are above a threshold, from 0 to 1."""
    true_positives: NDArray[np.float64]
    """The share of the positive rows that are, which is the recall."""
    precision: NDArray[np.float64]
    """The share of positive rows among those above it; without the threshold that no row is above."""

    @property
    def area_under_roc(self) -> float:
        """How often a positive row has a higher score than a negative one; ties count half."""
        heights = (self.true_positives[1:] + self.true_positives[:-1]) / 2
        return float(np.sum(np.diff(self.false_positives) * heights))

    @property
    def area_under_pr(self) -> float:
        """The average precision: the mean over thresholds of the precision, by what each adds to the recall."""
        return float(np.sum(np.diff(self.true_positives) * self.precision))


def cells(outputs: torch.Tensor) -> torch.Tensor:
    """The cell of each row, whose logits are (n, 2)."""
    margins = outputs[:, 1].double() - outputs[:, 0].double()
    places = (margins / (1 + margins.abs())).nan_to_num(nan=0.0)  # an infinite one lies at an end
    places = torch.where(margins.isinf(), margins.sign(), places)
    return ((places + 1) / 2 * CELLS).long().clamp(0, CELLS - 1)


def curves(negatives: NDArray[np.float64], positives: NDArray[np.float64]) -> ThresholdCurves | None:
    """From the weight of the rows of each class by cell; None unless there are rows of both."""
    used = np.flatnonzero(negatives + positives)[::-1]
    false, true = np.cumsum(negatives[used]), np.cumsum(positives[used])
    if not len(used) or not false[-1] or not true[-1]:
        return None
    return ThresholdCurves(
        np.concatenate([[0.0], false / false[-1]]),
        np.concatenate([[0.0], true / true[-1]]),
        true / (true + false),
    )
