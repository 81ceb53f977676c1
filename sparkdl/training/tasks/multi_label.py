"""Multi-label classification: each row has any number of classes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch.nn import functional
from typing_extensions import override

from sparkdl.inputs.tensors import Inputs, count_rows
from sparkdl.training.tasks.by_class import ByClass
from sparkdl.training.tasks.learning import Task, mean_of_shares
from sparkdl.training.tasks.likeliest import pairs_type, ranked

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["MultiLabel"]

_TEXT = pa.string()


class MultiLabel(Task):
    """Predicts the classes of a row. Outputs are logits; labels are uint8, 1 at each class of the row and 0 elsewhere.

    ``mean_average_precision`` is the mean over rows of the average precision of a row's ranking of all classes, as in
    retrieval (Manning, Raghavan, Schuetze, 2008, section 8.4); rows without a class do not count. ``f1`` is the
    harmonic mean of precision and recall over all pairs of row and class (micro-averaged); classes with a probability
    above 0.5 are predicted. ``macro_f1`` is the mean of the F1 of each class.
    """

    name = "multi_label"
    loss = "binary_cross_entropy_with_logits"
    best_by = "mean_average_precision"
    step_figure = "f1"
    figure_names = ("mean_average_precision", "f1", "macro_f1")
    train_figures = ("mean_average_precision", "f1")
    sum_size = 5
    learns_from_teachers = True

    def __init__(self, num_classes: int, labels: pa.DataType = _TEXT) -> None:
        """``labels`` is the Arrow type of predicted labels."""
        self.answer = pa.schema([("prediction", pa.list_(labels)), ("top_k", pairs_type(labels))])
        self.outputs = num_classes
        self.count_size = 4 * num_classes

    @override
    def targets(self, labels: torch.Tensor) -> torch.Tensor:
        return labels.float()

    @override
    def divergence(self, outputs: torch.Tensor, teacher: torch.Tensor, temperature: float) -> torch.Tensor:
        """The mean over the classes of that of each one's two probabilities."""
        ours, theirs = outputs / temperature, teacher / temperature
        crossed = functional.binary_cross_entropy_with_logits(ours, theirs.sigmoid(), reduction="none")
        entropy = functional.binary_cross_entropy_with_logits(theirs, theirs.sigmoid(), reduction="none")
        return (crossed - entropy).mean(dim=1)

    @override
    def some_labels(self, inputs: Inputs) -> torch.Tensor:
        return torch.ones(count_rows(inputs), self.outputs, dtype=torch.uint8)

    @override
    def measure(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """For each row: its right, wrong and missing predictions, its average precision, and whether it has a class."""
        right, wrong, missing = (found.sum(dim=1) for found in _compared(outputs, labels))
        order = outputs.argsort(dim=1, descending=True)
        relevant = labels.gather(1, order).double()
        ranks = torch.arange(1, self.outputs + 1, device=outputs.device)
        has_class = labels.any(dim=1)
        precision = (relevant * relevant.cumsum(dim=1) / ranks).sum(dim=1) / relevant.sum(dim=1).clamp(min=1)
        return torch.stack([each.double() for each in (right, wrong, missing, precision, has_class)], dim=1)

    @override
    def figures(self, sums: Sequence[float], weight: float) -> dict[str, float]:
        right, wrong, missing, precision, with_class = sums
        return {
            "mean_average_precision": mean_of_shares(precision, with_class) if with_class else 0.0,
            "f1": 2 * right / (2 * right + wrong + missing) if right else 0.0,
        }

    @override
    def count(
        self, counts: torch.Tensor, outputs: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | None
    ) -> None:
        """For each class, add the weights of rows rightly predicted, predicted and true, and the count of true rows."""
        predicted, true = outputs > 0, labels.bool()
        for total, found in zip(counts.view(4, -1), (predicted & true, predicted, true), strict=False):
            total += (found if weights is None else found * weights.double().unsqueeze(1)).sum(dim=0)
        counts[-self.outputs :] += true.sum(dim=0)

    @override
    def counted_figures(self, counts: NDArray[np.float64], weight: float) -> dict[str, float]:
        return {"macro_f1": ByClass.of(counts).macro_f1}

    @override
    def table(self, counts: NDArray[np.float64], class_names: Sequence[str]) -> str:
        return ByClass.of(counts).to_csv(class_names)

    @override
    def pictures(self, counts: NDArray[np.float64], class_names: Sequence[str]) -> "dict[str, Figure]":
        from sparkdl.tracking.figures import class_scores

        found = ByClass.of(counts)
        return {"classes": class_scores(found.precision, found.recall, found.rows, class_names)}

    @override
    def answers(self, outputs: torch.Tensor, label_names: pa.Array, *, top_k: int) -> list[pa.Array]:
        """The labels with a probability above 0.5, the likeliest first, and the ``top_k`` likeliest."""
        found = torch.sigmoid(outputs).sort(dim=1, descending=True)
        classes, probabilities = found.indices.numpy(), found.values.double().numpy()
        chosen = probabilities > 0.5
        offsets = pa.array(np.concatenate([[0], np.cumsum(chosen.sum(axis=1))]).astype(np.int32))
        predictions = pa.ListArray.from_arrays(offsets, label_names.take(pa.array(classes[chosen])))
        return [predictions, ranked(label_names, classes[:, :top_k], probabilities[:, :top_k])[2]]


def _compared(outputs: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Masks of right, wrong and missing predictions, of shape (n, classes)."""
    predicted, true = outputs > 0, labels.bool()
    return predicted & true, predicted & ~true, ~predicted & true
