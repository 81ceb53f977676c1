"""One class a row."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import torch
from typing_extensions import override

from sparkdl.training.tasks.learning import Task, mean_of_shares
from sparkdl.training.tasks.likeliest import PAIRS, lists, ranked

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ClassVectors", "Classification"]

LARGEST_CONFUSION = 1000  # classes; beyond, a matrix of all pairs is neither readable nor cheap to add up


class Classification(Task):
    """Tells which one of some classes a row is of: outputs are logits, labels class indices (int64)."""

    name = "classification"
    loss = "cross_entropy"
    best_by = step_figure = "accuracy"
    figure_names = ("accuracy",)
    sum_size = 1
    answer = pa.schema([("prediction", pa.string()), ("probability", pa.float64()), ("top_k", PAIRS)])

    def __init__(self, num_classes: int, class_weights: Sequence[float] | None = None) -> None:
        """``class_weights`` are what rows count in the loss, by class index, beside their own weights."""
        self.outputs = num_classes
        self._class_weights = None if class_weights is None else torch.tensor(class_weights, dtype=torch.float64)
        self.picture_size = num_classes**2 if num_classes <= LARGEST_CONFUSION else 0

    @override
    def loss_weights(self, labels: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor | None:
        if self._class_weights is None:
            return weights
        of_classes = self._class_weights.to(labels.device)[labels]
        return of_classes if weights is None else of_classes * weights

    @override
    def some_labels(self, rows: int) -> torch.Tensor:
        return torch.arange(rows) % self.outputs

    @override
    def measure(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Whether the likeliest class is the right one."""
        return (outputs.argmax(dim=1) == labels).unsqueeze(1)

    @override
    def figures(self, sums: Sequence[float], weight: float) -> dict[str, float]:
        return {"accuracy": mean_of_shares(sums[0], weight)}

    @override
    def count_for_picture(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """How often class i was taken for class j, at the place i * classes + j."""
        return torch.bincount(labels * self.outputs + outputs.argmax(dim=1), minlength=self.picture_size)

    @override
    def curves(self, history: Sequence[Mapping[str, float]]) -> "dict[str, Figure]":
        from sparkdl.tracking.figures import accuracy_curve, loss_curve  # which need matplotlib

        return {"loss": loss_curve(history, self.loss_unit), "accuracy": accuracy_curve(history)}

    @override
    def pictures(self, counts: Sequence[float], class_names: Sequence[str]) -> "dict[str, Figure]":
        from sparkdl.tracking.figures import confusion_matrix

        return {"confusion": confusion_matrix(np.reshape(counts, (self.outputs, self.outputs)), class_names)}

    @override
    def answers(self, outputs: torch.Tensor, label_names: pa.Array, *, top_k: int) -> list[pa.Array]:
        """The likeliest class, its probability, and the ``top_k`` likeliest with theirs."""
        found = torch.softmax(outputs, dim=1).topk(top_k, dim=1)
        return ranked(label_names, found.indices.numpy(), found.values.double().numpy())


class ClassVectors(Classification):
    """The same, with answers that pyspark.ml's columns are made from."""

    answer = pa.schema(
        [("prediction", pa.string()), ("logits", pa.list_(pa.float64())), ("probabilities", pa.list_(pa.float64()))]
    )

    @override
    def answers(self, outputs: torch.Tensor, label_names: pa.Array, *, top_k: int) -> list[pa.Array]:
        """The likeliest class; logits whose mean is zero and probabilities of all, by class index."""
        logits = self.values(outputs)
        predicted = label_names.take(pa.array(outputs.argmax(dim=1).numpy()))
        return [predicted, lists(logits.numpy()), lists(torch.softmax(logits, dim=1).numpy())]

    def values(self, outputs: torch.Tensor) -> torch.Tensor:
        """Logits whose mean is zero, float64."""
        return outputs.double() - outputs.double().mean(dim=1, keepdim=True)
