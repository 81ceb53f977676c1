"""The interface of tasks: a task defines loss, figures, the figure that chooses the best epoch, pictures and answers.

Everything else (the loop, checkpoints, strategies, the registry) is the same for all tasks and calls this interface.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from sparkdl.inputs.tensors import Inputs
from sparkdl.settings.section import TaskName

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Task", "mean_of_shares"]


class Task(ABC):
    """How a network learns from labels. Runs on ranks; the driver draws pictures, and Spark tasks make answers."""

    name: ClassVar[TaskName]
    loss: ClassVar[str]
    """The default loss: a name in ``torch.nn.functional``, or ``module:name``."""
    figure_names: tuple[str, ...]
    """The figures of a held-out split."""
    train_figures: ClassVar[tuple[str, ...]]
    """The figures that :meth:`figures` computes; these are also known in training."""
    best_by: ClassVar[str]
    """The figure that chooses the best epoch by default."""
    step_figure: ClassVar[str]
    """The figure that is shown for single steps, because few rows are enough for it."""
    answer: pa.Schema
    """The columns that scoring adds."""

    sum_size: ClassVar[int]
    """The number of sums that figures are computed from."""
    outputs: int
    """The number of outputs that the network has for a row."""

    def targets(self, labels: torch.Tensor) -> torch.Tensor:
        """The targets of the loss, from the labels of a batch."""
        return labels

    def loss_weights(self, labels: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor | None:
        """The weights of a batch's rows in the loss, from the rows' own weights; None if all rows count equally."""
        return weights

    learns_from_teachers: ClassVar[bool] = False
    """Whether the task implements :meth:`divergence`."""

    def divergence(self, outputs: torch.Tensor, teacher: torch.Tensor, temperature: float) -> torch.Tensor:
        """The divergence of outputs from a teacher's, both divided by a temperature: of shape (n,), 0 if equal."""
        raise NotImplementedError

    @abstractmethod
    def some_labels(self, inputs: Inputs) -> torch.Tensor:
        """Possible labels for a batch of these inputs, to try a loss on."""

    @abstractmethod
    def measure(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """What each row adds to the sums that figures are computed from: of shape (n, sum_size)."""

    def sums(self, outputs: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
        """The weighted sum of :meth:`measure` over rows, of shape (sum_size,); callers add it up over ranks.

        The sum is of integers or float64 whatever the network's precision, so that the sum of some rows' weights cannot
        be rounded to more than the sum of all.
        """
        rows = self.measure(outputs, labels)
        return (rows if weights is None else rows * weights.double().unsqueeze(1)).sum(dim=0)

    @abstractmethod
    def figures(self, sums: Sequence[float], weight: float) -> dict[str, float]:
        """The figures from the sums over all rows; ``weight`` is the sum of the rows' weights, or their number."""

    count_size: int
    """The number of counts of :meth:`count`."""
    has_curves: bool = False
    """Whether the points of curves (:mod:`~sparkdl.training.tasks.areas`) follow the counts; only for two classes."""

    @abstractmethod
    def count(
        self, counts: torch.Tensor, outputs: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | None
    ) -> None:
        """Add the further counts of these rows to ``counts``, float64 of shape (count_size,).

        Only evaluation calls it: in training it would take too much time in each step.
        """

    def counted_figures(self, counts: NDArray[np.float64], weight: float) -> dict[str, float]:
        """The other figures of a split, from the counts of :meth:`count`.

        Figures that are not defined for the rows are left out, such as the area under the ROC curve of one class.
        """
        return {}

    def table(self, counts: NDArray[np.float64], class_names: Sequence[str]) -> str | None:
        """The figures of each class in a split, as CSV; None if the task has no classes."""
        return None

    loss_unit: str = ""
    """The unit of the loss; empty if it is not known."""

    def kept_with_models(self) -> dict[str, Any]:
        """The values of a model's card that replace those of its dataset's card."""
        return {}

    def curves(self, history: Sequence[Mapping[str, float]]) -> "dict[str, Figure]":
        """Pictures of loss and figures over epochs, by name."""
        from sparkdl.tracking.figures import figure_curve, loss_curve  # which need matplotlib

        figures = {name: figure_curve(history, name) for name in self.figure_names}
        return {"loss": loss_curve(history, self.loss_unit), **figures}

    @abstractmethod
    def pictures(self, counts: NDArray[np.float64], class_names: Sequence[str]) -> "dict[str, Figure]":
        """Pictures of one split from the counts of :meth:`count`; keys are the beginnings of the pictures' names."""

    @abstractmethod
    def answers(self, outputs: torch.Tensor, label_names: pa.Array, *, top_k: int) -> list[pa.Array]:
        """The columns of the schema :attr:`answer`, for outputs of shape (n, outputs)."""


def mean_of_shares(total: float, weight: float) -> float:
    """The mean of values up to 1, limited to 1: rounding in the sum could make it larger."""
    return min(total / weight, 1.0)
