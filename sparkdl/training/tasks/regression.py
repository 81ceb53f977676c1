"""A number a row."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from typing_extensions import override

from sparkdl.data.card import LinkFunction
from sparkdl.inputs.tensors import Inputs, count_rows
from sparkdl.training.tasks.learning import Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Regression"]

CELLS = 64
"""Of the picture of predicted over true numbers, in each direction."""
REACH = 3.0
"""How far the picture goes, in standard deviations of the training labels; what is beyond lies at its edge."""


class Regression(Task):
    """Predicts a number from a row, whose label is float64; figures and predictions have the labels' own unit.

    Where labels are ``standardised``, the output is how many standard deviations the number is above the mean, and the
    loss is of standardised labels, so that a learning rate is right for labels of any unit. Elsewhere the loss is given
    labels as they are, and the output is the number, or with the ``link`` of ``log`` its logarithm, as generalised
    linear models have it.
    """

    name = "regression"
    loss = "mse_loss"
    best_by = "r2"
    step_figure = "rmse"
    figure_names = train_figures = ("r2", "rmse", "mae")
    sum_size = 4
    answer = pa.schema([("prediction", pa.float64())])
    outputs = 1
    count_size = CELLS**2
    learns_from_teachers = True

    def __init__(
        self, mean: float = 0.0, std: float = 1.0, *, standardised: bool = True, link: LinkFunction = "identity"
    ) -> None:
        """Mean and standard deviation are those of the training labels."""
        self.mean, self.std, self.standardised, self.link = mean, std, standardised, link

    @override
    def kept_with_models(self) -> dict[str, Any]:
        return {} if self.standardised else {"label_scale": None, "link": self.link}

    @override
    def targets(self, labels: torch.Tensor) -> torch.Tensor:
        return (self._standardised(labels) if self.standardised else labels).float().unsqueeze(1)

    @override
    def divergence(self, outputs: torch.Tensor, teacher: torch.Tensor, temperature: float) -> torch.Tensor:
        """The squared difference of both numbers, each standardised and divided by the temperature."""
        return ((self._predicted(outputs) - teacher.squeeze(1).double()) / temperature).square().float()

    @override
    def some_labels(self, inputs: Inputs) -> torch.Tensor:
        return torch.full((count_rows(inputs),), self.mean, dtype=torch.float64)

    @override
    def measure(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Of standardised numbers: the label, its square, the squared error and the absolute one."""
        true = self._standardised(labels)
        error = self._predicted(outputs) - true
        return torch.stack([true, true**2, error**2, error.abs()], dim=1)

    @override
    def figures(self, sums: Sequence[float], weight: float) -> dict[str, float]:
        """R² (the part of the variance that is explained), and the root of the squared and the mean absolute error."""
        labels, squares, squared_errors, errors = sums
        variation = squares - labels**2 / weight
        return {
            "r2": 1 - squared_errors / variation if variation > 0 else float(squared_errors == 0),
            "rmse": self.std * math.sqrt(squared_errors / weight),
            "mae": self.std * errors / weight,
        }

    @override
    def count(
        self, counts: torch.Tensor, outputs: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | None
    ) -> None:
        """How many rows lie in each cell: the true number gives the column, the predicted one the row."""
        true, predicted = (_cell(values) for values in (self._standardised(labels), self._predicted(outputs)))
        counts += torch.bincount(predicted * CELLS + true, minlength=self.count_size)

    @override
    def pictures(self, counts: NDArray[np.float64], class_names: Sequence[str]) -> "dict[str, Figure]":
        from sparkdl.tracking.figures import predicted_over_true

        extent = self.mean - REACH * self.std, self.mean + REACH * self.std
        return {"predicted": predicted_over_true(np.reshape(counts, (CELLS, CELLS)), extent)}

    @override
    def answers(self, outputs: torch.Tensor, label_names: pa.Array, *, top_k: int) -> list[pa.Array]:
        """The number."""
        return [pa.array(self.values(outputs).squeeze(1).numpy())]

    def values(self, outputs: torch.Tensor) -> torch.Tensor:
        """The numbers, float64 of shape (n, 1)."""
        if self.standardised:
            return outputs.double() * self.std + self.mean
        return outputs.double().exp() if self.link == "log" else outputs.double()

    def _predicted(self, outputs: torch.Tensor) -> torch.Tensor:
        """The standardised numbers, float64 of shape (n,)."""
        return (outputs.double() if self.standardised else self._standardised(self.values(outputs))).squeeze(1)

    def _standardised(self, labels: torch.Tensor) -> torch.Tensor:
        return (labels.double() - self.mean) / self.std


def _cell(values: torch.Tensor) -> torch.Tensor:
    """The cell that a standardised number lies in."""
    return ((values.double() + REACH) / (2 * REACH) * CELLS).long().clamp(0, CELLS - 1)
