"""Ranking: each row gets a score, by which the rows of its group are ordered."""

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
"""The number of a group's first places that count for NDCG."""
PLACES = 20
"""The number of places in the picture of NDCG."""


class Ranking(Task):
    """Orders the rows of a group. Outputs are scores; better rows have higher scores.

    Outputs have the rows of all groups one after another, shape (rows, 1). Labels have one group per line, shape
    (groups, rows of the largest group): the relevance of each row, and -1 after the group's last row. Figures are means
    over groups, so that a large group counts as much as a small one.

    ``ndcg_at_10`` is the normalised discounted cumulative gain (Järvelin and Kekäläinen, 2002) of the first ten places,
    with the gain 2^relevance - 1 (Burges et al., 2005). ``mean_reciprocal_rank`` is the mean of 1 / the place of the
    first row with a relevance above 0 (Voorhees, 1999, The TREC-8 question answering track report). A group without
    relevant rows has an NDCG of 1, as in xgboost, and a reciprocal rank of 0, as in trec_eval.
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
        """Labels as if all rows were one group."""
        return torch.arange(count_rows(inputs), dtype=torch.float64).remainder(3).unsqueeze(0)

    @override
    def measure(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Each group's NDCG and reciprocal rank."""
        relevant = _gains(outputs, labels) > 0
        rank = 1 + relevant.long().argmax(dim=1)  # argmax returns the first of equal ones
        reciprocal = relevant.any(dim=1) / rank.double()
        return torch.stack([_ndcg(outputs, labels, CUTOFF)[:, -1], reciprocal], dim=1)

    @override
    def figures(self, sums: Sequence[float], weight: float) -> dict[str, float]:
        return {name: mean_of_shares(total, weight) for name, total in zip(self.figure_names, sums, strict=True)}

    @override
    def count(
        self, counts: torch.Tensor, outputs: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | None
    ) -> None:
        """Add the NDCG at 1, 2, ... places, summed over groups, and the number of groups."""
        sums = _ndcg(outputs, labels, PLACES).sum(dim=0)
        counts += torch.cat([sums, sums.new_tensor([len(labels)])])

    @override
    def pictures(self, counts: NDArray[np.float64], class_names: Sequence[str]) -> "dict[str, Figure]":
        from sparkdl.tracking.figures import gain_by_place

        *sums, groups = counts
        return {"ndcg": gain_by_place([each / groups for each in sums], int(groups))}

    @override
    def answers(self, outputs: torch.Tensor, label_names: pa.Array, *, top_k: int) -> list[pa.Array]:
        """The score of each row; groups are not needed for it."""
        return [pa.array(self.values(outputs).squeeze(1).numpy())]

    def values(self, outputs: torch.Tensor) -> torch.Tensor:
        """The scores, float64 of shape (n, 1)."""
        return outputs.double()


def listnet(outputs: torch.Tensor, labels: torch.Tensor, reduction: Literal["mean", "none"] = "mean") -> torch.Tensor:
    """ListNet's loss (Cao et al., 2007): cross entropy between the softmax of relevance and of scores in a group.

    Outputs and labels are those of :class:`Ranking`. Returns the mean over groups, or the loss of each group.
    """
    no_row = labels < 0
    targets = labels.float().masked_fill(no_row, -torch.inf).softmax(dim=1)
    found = in_groups(outputs, labels).log_softmax(dim=1).masked_fill(no_row, 0.0)
    by_group = -(targets * found).sum(dim=1)
    return by_group.mean() if reduction == "mean" else by_group


def in_groups(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Scores in the shape of labels, one group per line; minus infinity after the group's last row."""
    lines = torch.full_like(labels, -torch.inf, dtype=outputs.dtype)
    return lines.masked_scatter(labels >= 0, outputs)


def _gains(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The gains of each group's rows (float64), in descending order of scores.

    Rows with equal scores keep the order of the dataset, which is not related to relevance.
    """
    order = in_groups(outputs, labels).argsort(dim=1, descending=True, stable=True)
    return _gain(labels).gather(1, order)


def _gain(labels: torch.Tensor) -> torch.Tensor:
    return labels.double().clamp(min=0).exp2() - 1


def _ndcg(outputs: torch.Tensor, labels: torch.Tensor, places: int) -> torch.Tensor:
    """NDCG of each group at 1, 2, ... places: of shape (groups, places)."""
    found, best = _gains(outputs, labels), _gain(labels).sort(dim=1, descending=True).values
    discounts = torch.arange(2, found.shape[1] + 2, device=found.device, dtype=torch.float64).log2()
    found, best = ((gains / discounts).cumsum(dim=1) for gains in (found, best))
    reached = torch.arange(places, device=found.device).clamp(max=found.shape[1] - 1)  # a small group has fewer places
    found, best = found[:, reached], best[:, reached]
    return torch.where(best > 0, found / best.clamp(min=torch.finfo(best.dtype).tiny), 1.0)
