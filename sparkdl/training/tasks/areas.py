"""ROC and precision-recall curves of two classes, and the areas under them, from the scores of rows. Runs on ranks.

Each rank keeps a point for every score of its rows: the score, and the total weight of its rows in each class. The
points of all ranks together give the curves. A rank with too many scores merges neighbouring points, whose rows then
count as ties. So the areas equal those of scikit-learn exactly for up to 65,536 scores, and to 1e-4 for more.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["POINTS", "Scores", "ThresholdCurves", "curves", "joined"]

POINTS = 1 << 16
"""Approximate limit for all ranks together: 1.5 megabytes, which ranks exchange once in each evaluation."""
_FEWEST = 1 << 12
"""The smallest limit for a rank, however many ranks there are: 98 kilobytes."""
_WAITING = 1 << 20
"""The number of rows whose scores are kept before they are merged to points: 24 megabytes."""


class ThresholdCurves(NamedTuple):
    """The curves over all thresholds, the highest first; the positive class is the second one."""

    false_positives: NDArray[np.float64]
    """The share of negative rows above each threshold, from 0 to 1."""
    true_positives: NDArray[np.float64]
    """The share of positive rows above each threshold, which is the recall."""
    precision: NDArray[np.float64]
    """The share of positive rows among the rows above each threshold; the first threshold has none and is left out."""

    @property
    def area_under_roc(self) -> float:
        """The probability that a positive row has a higher score than a negative one; ties count half."""
        heights = (self.true_positives[1:] + self.true_positives[:-1]) / 2
        return float(np.sum(np.diff(self.false_positives) * heights))

    @property
    def area_under_pr(self) -> float:
        """The average precision: the mean of the precision, each threshold weighted by what it adds to the recall."""
        return float(np.sum(np.diff(self.true_positives) * self.precision))


class Scores:
    """The points of one part of the rows: those of a rank, or of a portion."""

    def __init__(self, *, parts: int, device: torch.device) -> None:
        self._limit = max(POINTS // parts, _FEWEST)
        self._points = torch.zeros(3, 0, dtype=torch.float64, device=device)
        self._waiting: list[torch.Tensor] = []
        self._waiting_rows = 0

    def add(self, outputs: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | None) -> None:
        """Add rows with logits of shape (n, 2). A row's score is the second logit minus the first; NaN counts as 0."""
        margins = (outputs[:, 1].double() - outputs[:, 0].double()).nan_to_num(nan=0.0)
        by_class = torch.stack([labels == 0, labels == 1]).double()
        rows = torch.cat([margins.unsqueeze(0), by_class if weights is None else by_class * weights.double()])
        self._waiting.append(rows)
        self._waiting_rows += len(labels)
        if self._waiting_rows > _WAITING:
            self.points()

    def points(self) -> torch.Tensor:
        """The points, float64 of shape (3, points): ascending scores, and the weight of negative and positive rows."""
        if self._waiting:
            self._points = _thinned(_distinct(torch.cat([self._points, *self._waiting], dim=1)), self._limit)
            self._waiting, self._waiting_rows = [], 0
        return self._points


def joined(points: Sequence[torch.Tensor]) -> torch.Tensor:
    """The points of all parts; equal scores are merged to one point."""
    return _distinct(torch.cat(list(points), dim=1))


def _distinct(points: torch.Tensor) -> torch.Tensor:
    """The points with equal scores merged, in ascending order."""
    scores, place = points[0].unique(return_inverse=True)
    weights = torch.zeros(2, len(scores), dtype=points.dtype, device=points.device).index_add_(1, place, points[1:])
    return torch.cat([scores.unsqueeze(0), weights])


def _thinned(points: torch.Tensor, limit: int) -> torch.Tensor:
    """At most ``limit`` points: neighbours are merged to one point, which has the score of the middle one.

    Each merged group has about the same sum of shares in the negative rows, in the positive rows and in the logarithm
    of the rank: the precision at every later threshold depends on the highest scores, so that their groups are small.
    """
    if points.shape[1] <= limit:
        return points
    tiny = torch.finfo(points.dtype).tiny
    weight = points[1:].sum(dim=0)
    above = weight.flip(0).cumsum(0).flip(0)
    shares = torch.stack([*points[1:], weight / above.clamp(min=tiny)])
    shares = (shares / shares.sum(dim=1, keepdim=True).clamp(min=tiny)).mean(dim=0)
    group = ((shares.cumsum(0) - shares / 2) * limit).long().clamp(max=limit - 1)
    _, place, counts = group.unique_consecutive(return_inverse=True, return_counts=True)
    weights = torch.zeros(2, len(counts), dtype=points.dtype, device=points.device).index_add_(1, place, points[1:])
    return torch.cat([points[:1, counts.cumsum(0) - (counts + 1) // 2], weights])


def curves(points: NDArray[np.float64]) -> ThresholdCurves | None:
    """The curves from points of shape (3, n); None unless there are rows of both classes."""
    negatives, positives = points[1:, ::-1]
    used = np.flatnonzero(negatives + positives)
    false, true = np.cumsum(negatives[used]), np.cumsum(positives[used])
    if not len(used) or not false[-1] or not true[-1]:
        return None
    return ThresholdCurves(
        np.concatenate([[0.0], false / false[-1]]),
        np.concatenate([[0.0], true / true[-1]]),
        true / (true + false),
    )
