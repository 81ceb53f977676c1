"""What a kind of task decides: the loss, the figures, which of them says what is best, pictures, and what scoring adds.

Everything else (the loop, checkpoints, strategies, the registry) asks the task, and is the same for all.
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
    """What a network learns from labels. Runs on ranks; pictures are drawn on the driver, answers given by tasks."""

    name: ClassVar[TaskName]
    loss: ClassVar[str]
    """The name in ``torch.nn.functional`` of what is usually minimised."""
    figure_names: tuple[str, ...]
    """The figures of a split that is held out."""
    train_figures: ClassVar[tuple[str, ...]]
    """Those of them that :meth:`figures` finds, in training, too."""
    best_by: ClassVar[str]
    """The figure that usually decides which epoch is the best one."""
    step_figure: ClassVar[str]
    """The figure that is shown of single steps: few rows are enough for it."""
    answer: pa.Schema
    """The columns that scoring adds."""

    sum_size: ClassVar[int]
    """How many numbers each row adds to the figures."""
    outputs: int
    """How many numbers the network answers for a row."""

    def targets(self, labels: torch.Tensor) -> torch.Tensor:
        """What the loss compares outputs with, from labels as a batch has them."""
        return labels

    def loss_weights(self, labels: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor | None:
        """How much each row of a batch counts in the loss, from the rows' own weights; None where all count alike."""
        return weights

    learns_from_teachers: ClassVar[bool] = False
    """Whether there is a :meth:`divergence`."""

    def divergence(self, outputs: torch.Tensor, teacher: torch.Tensor, temperature: float) -> torch.Tensor:
        """How far outputs are from a teacher's answers, both divided by a temperature: of shape (n,), 0 where equal."""
        raise NotImplementedError

    @abstractmethod
    def some_labels(self, inputs: Inputs) -> torch.Tensor:
        """Labels as a batch of these inputs might have them, to try a loss with."""

    @abstractmethod
    def measure(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """What each row adds to the figures: of shape (n, sum_size)."""

    def sums(self, outputs: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
        """What these rows add to the figures by their weights: of shape (sum_size,), to be added up over ranks.

        In whole numbers or float64, whatever the network computes in: no share of some weights is larger than all.
        """
        rows = self.measure(outputs, labels)
        return (rows if weights is None else rows * weights.double().unsqueeze(1)).sum(dim=0)

    @abstractmethod
    def figures(self, sums: Sequence[float], weight: float) -> dict[str, float]:
        """The figures of all rows that were summed up; ``weight`` is the sum of theirs, or else their number."""

    count_size: int
    """How many numbers :meth:`count` adds to."""
    has_curves: bool = False
    """Whether the points of curves (:mod:`~sparkdl.training.tasks.areas`) come behind them, of rows of two classes."""

    @abstractmethod
    def count(
        self, counts: torch.Tensor, outputs: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | None
    ) -> None:
        """Add to ``counts``, float64 of shape (count_size,), what evaluation finds of these rows beside their sums.

        Training does not: it is what would take time in each step.
        """

    def counted_figures(self, counts: NDArray[np.float64], weight: float) -> dict[str, float]:
        """The figures of a split that :meth:`figures` does not find, from what :meth:`count` added up.

        One that has no meaning for these rows is left out, such as an area under a curve of one class.
        """
        return {}

    def table(self, counts: NDArray[np.float64], class_names: Sequence[str]) -> str | None:
        """Figures of each class of one split, as CSV; None where there are no classes."""
        return None

    loss_unit: str = ""
    """The unit of the loss; empty if it is not known."""

    def kept_with_models(self) -> dict[str, Any]:
        """What a model's card says otherwise than that of its dataset."""
        return {}

    def curves(self, history: Sequence[Mapping[str, float]]) -> "dict[str, Figure]":
        """Pictures of the epochs, by their names."""
        from sparkdl.tracking.figures import figure_curve, loss_curve  # which need matplotlib

        figures = {name: figure_curve(history, name) for name in self.figure_names}
        return {"loss": loss_curve(history, self.loss_unit), **figures}

    @abstractmethod
    def pictures(self, counts: NDArray[np.float64], class_names: Sequence[str]) -> "dict[str, Figure]":
        """Pictures of one split, by the beginning of their names, from what :meth:`count` added up."""

    @abstractmethod
    def answers(self, outputs: torch.Tensor, label_names: pa.Array, *, top_k: int) -> list[pa.Array]:
        """The columns of :attr:`answer` for outputs of shape (n, outputs)."""


def mean_of_shares(total: float, weight: float) -> float:
    """The mean of what is at most 1 for each row, and is so in the mean too, in whatever order rows were added up."""
    return min(total / weight, 1.0)
