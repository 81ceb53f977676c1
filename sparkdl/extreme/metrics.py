"""Metrics of the k best classes, as defined by the Extreme Classification Repository.

The Repository (Bhatia et al., 2016, http://manikvarma.org/downloads/XC/XMLRepository.html) averages over all rows of a
split. Functions here run wherever they are called, on numpy arrays: ``predicted`` of shape (n, k) are class indices,
best first, -1 for none; the true classes of row i are ``labels[offsets[i]:offsets[i + 1]]``, -1 for a label that was
never seen in training. Such a label cannot be predicted; it stays a true label of its row, and so counts as missed.
Each function gives an array of shape (k,) of fractions: the metric at 1, 2, ... k.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparkdl.extreme.hashing import Integers

__all__ = [
    "METRICS",
    "RankingMetrics",
    "evaluate",
    "inverse_propensities",
    "ndcg_at_k",
    "precision_at_k",
    "propensity_scored_precision_at_k",
    "recall_at_k",
]

Floats = npt.NDArray[np.float64]

METRICS = "precision", "recall", "ndcg", "propensity_scored_precision"
PROPENSITY_A, PROPENSITY_B = 0.55, 1.5
"""Jain et al.'s constants for sets other than Wikipedia's (0.5, 0.4) and Amazon's (0.6, 2.6)."""


@dataclass(frozen=True)
class RankingMetrics:
    """All metrics of a split's predictions, each at 1 to k."""

    rows: int
    labels: int
    """True labels of all rows."""
    unseen_labels: int
    """True labels that training never saw, which no model could have predicted."""
    precision: Floats
    recall: Floats
    ndcg: Floats
    propensity_scored_precision: Floats | None
    """None without training counts."""

    def as_metrics(self) -> dict[str, float]:
        """The metrics by name, such as ``precision_at_5``, and the counts."""
        named = {name: found for name in METRICS if (found := getattr(self, name)) is not None}
        values = {f"{name}_at_{k}": float(at_k) for name, array in named.items() for k, at_k in enumerate(array, 1)}
        return {**values, "labels": float(self.labels), "unseen_labels": float(self.unseen_labels)}


def evaluate(
    predicted: Integers,
    labels: Integers,
    offsets: Integers,
    *,
    counts: Integers | None = None,
    num_rows: int | None = None,
    a: float = PROPENSITY_A,
    b: float = PROPENSITY_B,
) -> RankingMetrics:
    """All metrics at once; the propensity-scored one if the training split's ``counts`` and ``num_rows`` are given."""
    scored = None
    if counts is not None and num_rows is not None:
        scored = propensity_scored_precision_at_k(
            predicted, labels, offsets, counts=counts, num_rows=num_rows, a=a, b=b
        )
    return RankingMetrics(
        rows=len(predicted),
        labels=len(labels),
        unseen_labels=int((labels < 0).sum()),
        precision=precision_at_k(predicted, labels, offsets),
        recall=recall_at_k(predicted, labels, offsets),
        ndcg=ndcg_at_k(predicted, labels, offsets),
        propensity_scored_precision=scored,
    )


def precision_at_k(predicted: Integers, labels: Integers, offsets: Integers) -> Floats:
    """P@k: the fraction of the first k that are right. Divided by k, also where a row has fewer labels than k."""
    found: Floats = _hits(predicted, labels, offsets).cumsum(1).mean(0)
    return found / np.arange(1, predicted.shape[1] + 1)


def recall_at_k(predicted: Integers, labels: Integers, offsets: Integers) -> Floats:
    """R@k: the fraction of a row's labels among the first k; 0 for a row without labels."""
    found = _hits(predicted, labels, offsets).cumsum(1)
    recall: Floats = (found / np.maximum(np.diff(offsets), 1)[:, None]).mean(0)
    return recall


def ndcg_at_k(predicted: Integers, labels: Integers, offsets: Integers) -> Floats:
    """nDCG@k: hits at place i weigh 1 / log2(i + 1), over the most that the row's labels allow; 0 without labels."""
    discounts = 1 / np.log2(np.arange(2, predicted.shape[1] + 2))
    gains = (_hits(predicted, labels, offsets) * discounts).cumsum(1)
    possible = discounts * (np.arange(len(discounts)) < np.maximum(np.diff(offsets), 1)[:, None])
    ndcg: Floats = (gains / possible.cumsum(1)).mean(0)
    return ndcg


def propensity_scored_precision_at_k(
    predicted: Integers,
    labels: Integers,
    offsets: Integers,
    *,
    counts: Integers,
    num_rows: int,
    a: float = PROPENSITY_A,
    b: float = PROPENSITY_B,
) -> Floats:
    """PSP@k (Jain et al., 2016): precision with each hit weighed by 1 / propensity, over the best that is possible.

    ``counts`` are the rows of each class in the training split and ``num_rows`` that split's rows. A label never seen
    in training has a count of 0 and so the largest weight.
    """
    weights = inverse_propensities(np.append(counts, 0), num_rows=num_rows, a=a, b=b)  # the last for index -1
    gained: Floats = (_hits(predicted, labels, offsets) * weights[predicted]).sum(0).cumsum()
    rows = np.repeat(np.arange(len(predicted)), np.diff(offsets))
    order = np.lexsort((-weights[labels], rows))
    place = np.arange(len(labels)) - offsets[:-1][rows]  # rows stay where they were, each sorted by weight
    possible = np.bincount(place, weights=weights[labels[order]], minlength=predicted.shape[1])
    scored: Floats = gained / possible[: predicted.shape[1]].cumsum()
    return scored


def inverse_propensities(
    counts: Integers, *, num_rows: int, a: float = PROPENSITY_A, b: float = PROPENSITY_B
) -> Floats:
    """1 / propensity of each class: 1 + C (count + b)^-a with C = (ln num_rows - 1) (b + 1)^a.

    Jain, Prabhu and Varma, "Extreme Multi-label Loss Functions for Recommendation, Tagging, Ranking & Other Missing
    Label Applications", KDD 2016.
    """
    factor: float = (np.log(num_rows) - 1) * (b + 1) ** a
    return 1 + factor * (np.asarray(counts) + b) ** -a


def _hits(predicted: Integers, labels: Integers, offsets: Integers) -> npt.NDArray[np.bool_]:
    """Which predictions are true labels of their row. Raises ValueError where the arrays do not fit."""
    if predicted.ndim != 2 or not len(predicted) or len(offsets) != len(predicted) + 1 or offsets[-1] != len(labels):
        raise ValueError(
            f"predictions of shape {predicted.shape} do not fit {len(labels)} labels with {len(offsets)} offsets; "
            "expected at least one row, and one offset more than rows, the last of them the number of labels"
        )
    ordered = np.sort(predicted, axis=1)
    if ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any():
        raise ValueError("a class is predicted twice in one row, which would count a hit twice")
    row = np.repeat(np.arange(len(predicted)), np.diff(offsets))
    width = max(predicted.max(), labels.max(initial=0)) + 1
    seen = labels >= 0
    keys = np.arange(len(predicted))[:, None] * width + predicted
    return np.isin(keys, row[seen] * width + labels[seen]) & (predicted >= 0)
