"""Classification: each row has one class."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch.nn import functional
from typing_extensions import override

from sparkdl.inputs.tensors import Inputs, count_rows
from sparkdl.training.tasks.areas import ThresholdCurves, curves
from sparkdl.training.tasks.by_class import ByClass
from sparkdl.training.tasks.learning import Task, mean_of_shares
from sparkdl.training.tasks.likeliest import lists, pairs_type, ranked

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ClassVectors", "Classification"]

OF_TWO = "area_under_roc", "area_under_pr", "precision", "recall", "f1"
TOP = 5
LARGEST_CONFUSION = 1000  # classes; a larger confusion matrix is unreadable and expensive to add up
_TEXT = pa.string()


class Classification(Task):
    """Predicts the class of a row. Outputs are logits, labels are class indices (int64)."""

    name = "classification"
    loss = "cross_entropy"
    best_by = step_figure = "accuracy"
    train_figures = ("accuracy",)
    sum_size = 1
    learns_from_teachers = True

    def __init__(
        self, num_classes: int, labels: pa.DataType = _TEXT, *, class_weights: Sequence[float] | None = None
    ) -> None:
        """``labels`` is the Arrow type of predicted labels.

        ``class_weights`` are factors on the weights of rows in the loss, by class index.
        """
        self.answer = pa.schema([("prediction", labels), ("probability", pa.float64()), ("top_k", pairs_type(labels))])
        self.outputs = num_classes
        self._class_weights = None if class_weights is None else torch.tensor(class_weights, dtype=torch.float64)
        pairs = num_classes**2 if num_classes <= LARGEST_CONFUSION else 0
        self._parts = [4 * num_classes, 2, pairs]
        self.count_size = sum(self._parts)
        self.has_curves = num_classes == 2
        of_many = ("top_5_accuracy",) if num_classes > TOP else ()
        others = OF_TWO if num_classes == 2 else ("macro_f1", *of_many)
        self.figure_names = ("accuracy", *others, "log_loss")

    @override
    def loss_weights(self, labels: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor | None:
        if self._class_weights is None:
            return weights
        of_classes = self._class_weights.to(labels.device)[labels]
        return of_classes if weights is None else of_classes * weights

    @override
    def divergence(self, outputs: torch.Tensor, teacher: torch.Tensor, temperature: float) -> torch.Tensor:
        ours, theirs = (torch.log_softmax(logits / temperature, dim=1) for logits in (outputs, teacher))
        return functional.kl_div(ours, theirs, reduction="none", log_target=True).sum(dim=1)

    @override
    def some_labels(self, inputs: Inputs) -> torch.Tensor:
        return torch.arange(count_rows(inputs)) % self.outputs

    @override
    def measure(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Whether the class with the largest logit is the right one."""
        return (outputs.argmax(dim=1) == labels).unsqueeze(1)

    @override
    def figures(self, sums: Sequence[float], weight: float) -> dict[str, float]:
        return {"accuracy": mean_of_shares(sums[0], weight)}

    @override
    def count(
        self, counts: torch.Tensor, outputs: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | None
    ) -> None:
        """Add up what the figures need.

        For each class: the weights of rows rightly predicted, predicted and true, and the number of true rows. For all
        rows: the log loss, and the weight of rows with their class among the likeliest five. Then the confusion matrix.
        """
        predicted, ones = outputs.argmax(dim=1), torch.ones(len(labels), dtype=torch.float64, device=labels.device)
        weights = ones if weights is None else weights.double()
        of_classes, of_rows, pairs = counts.split(self._parts)
        right, found, true, rows = of_classes.view(4, -1)
        right.index_add_(0, labels, weights * (predicted == labels))
        found.index_add_(0, predicted, weights)
        true.index_add_(0, labels, weights)
        rows.index_add_(0, labels, ones)
        probabilities = torch.log_softmax(outputs.double(), dim=1).gather(1, labels.unsqueeze(1)).squeeze(1)
        likeliest = outputs.topk(min(TOP, self.outputs), dim=1).indices
        among_first = (likeliest == labels.unsqueeze(1)).any(dim=1)
        of_rows += torch.stack([-(probabilities * weights).sum(), (weights * among_first).sum()])
        if self._parts[2]:
            pairs.index_add_(0, labels * self.outputs + predicted, ones)

    @override
    def counted_figures(self, counts: NDArray[np.float64], weight: float) -> dict[str, float]:
        """Figures of two classes are those of the second one; precision and recall use the threshold 0.5."""
        of_classes, (loss, among_first), _, _ = self._apart(counts)
        found = {
            "top_5_accuracy": mean_of_shares(among_first, weight),
            "macro_f1": of_classes.macro_f1,
            "log_loss": loss / weight,
        }
        if self.outputs == 2:
            found |= {name: float(getattr(of_classes, name)[1]) for name in ("precision", "recall", "f1")}
            if shape := self._curves(counts):
                found |= {"area_under_roc": shape.area_under_roc, "area_under_pr": shape.area_under_pr}
        return {name: found[name] for name in self.figure_names if name in found}

    @override
    def table(self, counts: NDArray[np.float64], class_names: Sequence[str]) -> str:
        return self._apart(counts)[0].to_csv(class_names)

    @override
    def curves(self, history: Sequence[Mapping[str, float]]) -> "dict[str, Figure]":
        from sparkdl.tracking.figures import accuracy_curve  # which needs matplotlib

        return super().curves(history) | {"accuracy": accuracy_curve(history)}

    @override
    def pictures(self, counts: NDArray[np.float64], class_names: Sequence[str]) -> "dict[str, Figure]":
        from sparkdl.tracking.figures import confusion_matrix, precision_recall_curve, roc_curve

        found, (*_, confusion, _) = {}, self._apart(counts)
        if len(confusion):
            found["confusion"] = confusion_matrix(np.reshape(confusion, (self.outputs, self.outputs)), class_names)
        if shape := self._curves(counts):
            positive = class_names[1]
            found["roc"] = roc_curve(shape.false_positives, shape.true_positives, shape.area_under_roc, positive)
            recall = shape.true_positives[1:]
            found["precision_recall"] = precision_recall_curve(recall, shape.precision, shape.area_under_pr, positive)
        return found

    def _apart(
        self, counts: NDArray[np.float64]
    ) -> tuple[ByClass, NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """The counts of each class, those of all rows, the confusion matrix, and the points of the curves."""
        of_classes, of_rows, confusion, points = np.split(counts, np.cumsum(self._parts))
        return ByClass.of(of_classes), of_rows, confusion, points.reshape(3, -1)

    def _curves(self, counts: NDArray[np.float64]) -> ThresholdCurves | None:
        """The curves; None unless there are two classes, and rows of both."""
        return curves(self._apart(counts)[3])

    @override
    def answers(self, outputs: torch.Tensor, label_names: pa.Array, *, top_k: int) -> list[pa.Array]:
        """The likeliest class, its probability, and the ``top_k`` likeliest with theirs."""
        found = torch.softmax(outputs, dim=1).topk(top_k, dim=1)
        return ranked(label_names, found.indices.numpy(), found.values.double().numpy())


class ClassVectors(Classification):
    """Classification with the answers from which pyspark.ml's columns are made."""

    def __init__(self, num_classes: int, labels: pa.DataType = _TEXT) -> None:
        super().__init__(num_classes, labels)
        values = pa.list_(pa.float64())
        self.answer = pa.schema([("prediction", labels), ("logits", values), ("probabilities", values)])

    @override
    def answers(self, outputs: torch.Tensor, label_names: pa.Array, *, top_k: int) -> list[pa.Array]:
        """The likeliest class, and for all classes by index the centred logits and the probabilities."""
        logits = self.values(outputs)
        predicted = label_names.take(pa.array(outputs.argmax(dim=1).numpy()))
        return [predicted, lists(logits.numpy()), lists(torch.softmax(logits, dim=1).numpy())]

    def values(self, outputs: torch.Tensor) -> torch.Tensor:
        """Logits minus their mean over the classes, float64."""
        return outputs.double() - outputs.double().mean(dim=1, keepdim=True)
