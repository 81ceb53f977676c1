"""The areas under the curves of two classes, from the scores of rows. Runs on ranks.

Each rank keeps a point for every score that its rows have: the score, and what these rows weigh by class. Those of all
ranks are the points of the curves. A rank with very many scores puts neighbours together, whose rows then count as
ties. So the areas are those that scikit-learn finds, exactly for 65,536 scores, and to 1e-4 for more.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["POINTS", "Scores", "ThresholdCurves", "curves", "joined"]

POINTS = 1 << 16
"""About what all ranks have together: 1.5 megabytes, which they tell each other once for each evaluation."""
_FEWEST = 1 << 12
"""Points of a rank, however many ranks there are: 98 kilobytes."""
_WAITING = 1 << 20
"""Rows whose scores wait until points are made of them: 24 megabytes."""


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


class Scores:
    """The points of one of some parts of the rows, which ranks or portions hold."""

    def __init__(self, *, parts: int, device: torch.device) -> None:
        self._limit = max(POINTS // parts, _FEWEST)
        self._points = torch.zeros(3, 0, dtype=torch.float64, device=device)
        self._waiting: list[torch.Tensor] = []
        self._waiting_rows = 0

    def add(self, outputs: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | None) -> None:
        """Take rows whose logits are (n, 2): a score is the margin of the second one; no number counts as none."""
        margins = (outputs[:, 1].double() - outputs[:, 0].double()).nan_to_num(nan=0.0)
        by_class = torch.stack([labels == 0, labels == 1]).double()
        rows = torch.cat([margins.unsqueeze(0), by_class if weights is None else by_class * weights.double()])
        self._waiting.append(rows)
        self._waiting_rows += len(labels)
        if self._waiting_rows > _WAITING:
            self.points()

    def points(self) -> torch.Tensor:
        """Scores in their order, and the weight of the rows of each class: float64, (3, points)."""
        if self._waiting:
            self._points = _thinned(_distinct(torch.cat([self._points, *self._waiting], dim=1)), self._limit)
            self._waiting, self._waiting_rows = [], 0
        return self._points


def joined(points: Sequence[torch.Tensor]) -> torch.Tensor:
    """Those of all parts; a score that several have is one point."""
    return _distinct(torch.cat(list(points), dim=1))


def _distinct(points: torch.Tensor) -> torch.Tensor:
    """Rows of equal scores as one point, the lowest first."""
    scores, place = points[0].unique(return_inverse=True)
    weights = torch.zeros(2, len(scores), dtype=points.dtype, device=points.device).index_add_(1, place, points[1:])
    return torch.cat([scores.unsqueeze(0), weights])


def _thinned(points: torch.Tensor, limit: int) -> torch.Tensor:
    """No more than so many points: neighbours as one, with the score in their middle.

    Groups have about the same share of all rows, of the positive ones and of the logarithm of a row's place: what
    comes first decides the precision of all that follows.
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
    """From points, (3, n); None unless there are rows of both classes."""
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
