"""A score a row, by which the rows of a group are ordered."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from typing_extensions import override

from sparkdl.inputs.tensors import Inputs, count_rows
from sparkdl.training.tasks.learning import Task, mean_of_shares

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Ranking", "in_groups", "listnet"]

CUTOFF = 10
"""How many of a group's first places count for NDCG."""
PLACES = 20
"""How many of them its picture shows."""


class Ranking(Task):
    """Orders the rows of a group: outputs are scores, of which a higher one is for a better row.

    Outputs have the rows of all groups below one another, shape (rows, 1); labels a group in each line, shape
    (groups, rows of the largest one): how relevant its rows are, and -1 where it has no more rows. All that is added up
    is of groups, so that a large one counts as much as a small one.

    ``ndcg_at_10`` is the normalised discounted cumulative gain (Järvelin and Kekäläinen, 2002) of the first ten places,
    with the gain 2^relevance - 1 (Burges et al., 2005), and ``mean_reciprocal_rank`` is of the first row that has any
    relevance (Voorhees, 1999, The TREC-8 question answering track report). A group in which no row has any counts 1 for
    NDCG, as it does for xgboost's, and 0 for the reciprocal rank, as it does for trec_eval's.
    """

    name = "ranking"
    loss = "sparkdl.training.tasks.ranking:listnet"
    best_by = step_figure = "ndcg_at_10"
    figure_names = train_figures = ("ndcg_at_10", "mean_reciprocal_rank")
    sum_size = 2
    answer = pa.schema([("prediction", pa.float64())])
    outputs = 1
    count_size = PLACES + 1

    @override
    def some_labels(self, inputs: Inputs) -> torch.Tensor:
        """One group."""
        return torch.arange(count_rows(inputs), dtype=torch.float64).remainder(3).unsqueeze(0)

    @override
    def measure(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Each group's NDCG and reciprocal rank."""
        relevant = _gains(outputs, labels) > 0
        rank = 1 + relevant.long().argmax(dim=1)  # of several largest ones, the first
        reciprocal = relevant.any(dim=1) / rank.double()
        return torch.stack([_ndcg(outputs, labels, CUTOFF)[:, -1], reciprocal], dim=1)

    @override
    def figures(self, sums: Sequence[float], weight: float) -> dict[str, float]:
        return {name: mean_of_shares(total, weight) for name, total in zip(self.figure_names, sums, strict=True)}

    @override
    def count(
        self, counts: torch.Tensor, outputs: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | None
    ) -> None:
        """NDCG of the first place, of the first two and so on, summed over groups; and how many groups there are."""
        sums = _ndcg(outputs, labels, PLACES).sum(dim=0)
        counts += torch.cat([sums, sums.new_tensor([len(labels)])])

    @override
    def pictures(self, counts: NDArray[np.float64], class_names: Sequence[str]) -> "dict[str, Figure]":
        from sparkdl.tracking.figures import gain_by_place

        *sums, groups = counts
        return {"ndcg": gain_by_place([each / groups for each in sums], int(groups))}

    @override
    def answers(self, outputs: torch.Tensor, label_names: pa.Array, *, top_k: int) -> list[pa.Array]:
        """The score, which needs no group."""
        return [pa.array(self.values(outputs).squeeze(1).numpy())]

    def values(self, outputs: torch.Tensor) -> torch.Tensor:
        """The scores, float64 of shape (n, 1)."""
        return outputs.double()


def listnet(outputs: torch.Tensor, labels: torch.Tensor, reduction: Literal["mean", "none"] = "mean") -> torch.Tensor:
    """ListNet's loss (Cao et al., 2007): the cross entropy of a group's softmax of scores to its softmax of relevance.

    Takes what :class:`Ranking` says; returns the mean over groups, or each group's.
    """
    no_row = labels < 0
    targets = labels.float().masked_fill(no_row, -torch.inf).softmax(dim=1)
    found = in_groups(outputs, labels).log_softmax(dim=1).masked_fill(no_row, 0.0)
    by_group = -(targets * found).sum(dim=1)
    return by_group.mean() if reduction == "mean" else by_group


def in_groups(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Scores as labels lie, a group in each line; minus infinity where it has no more rows."""
    lines = torch.full_like(labels, -torch.inf, dtype=outputs.dtype)
    return lines.masked_scatter(labels >= 0, outputs)


def _gains(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The gains of a group's rows (float64), the one with the highest score first.

    Of equal scores, the row that comes first in the dataset does: there, the order of a group's rows says nothing.
    """
    order = in_groups(outputs, labels).argsort(dim=1, descending=True, stable=True)
    return _gain(labels).gather(1, order)


def _gain(labels: torch.Tensor) -> torch.Tensor:
    return labels.double().clamp(min=0).exp2() - 1


def _ndcg(outputs: torch.Tensor, labels: torch.Tensor, places: int) -> torch.Tensor:
    """NDCG of a group's first place, of the first two and so on: of shape (groups, places)."""
    found, best = _gains(outputs, labels), _gain(labels).sort(dim=1, descending=True).values
    discounts = torch.arange(2, found.shape[1] + 2, device=found.device, dtype=torch.float64).log2()
    found, best = ((gains / discounts).cumsum(dim=1) for gains in (found, best))
    reached = torch.arange(places, device=found.device).clamp(max=found.shape[1] - 1)  # a small group has fewer places
    found, best = found[:, reached], best[:, reached]
    return torch.where(best > 0, found / best.clamp(min=torch.finfo(best.dtype).tiny), 1.0)
