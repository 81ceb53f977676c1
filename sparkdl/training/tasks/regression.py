"""Regression: predicting a number for each row."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from typing_extensions import override

from sparkdl.data.card_parts import LinkFunction
from sparkdl.inputs.tensors import Inputs, count_rows
from sparkdl.training.tasks.learning import Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Regression"]

CELLS = 64
"""The number of cells in each direction of the picture of predicted over true numbers."""
REACH = 3.0
"""The picture's range on both sides of the mean, in standard deviations of the training labels; values outside it are
drawn at the edge."""


class Regression(Task):
    """Predicts a number for each row. Labels are float64; figures and predictions have the unit of the labels.

    If labels are ``standardised``, output and loss are in standard deviations from the mean, so that the learning rate
    does not depend on the unit of the labels. Otherwise the loss gets the labels unchanged, and the output is the
    number itself, or with the link function ``log`` its logarithm, as in generalised linear models.
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
        """``mean`` and ``std``, the standard deviation, are those of the training labels."""
        self.mean, self.std, self.standardised, self.link = mean, std, standardised, link

    @override
    def kept_with_models(self) -> dict[str, Any]:
        return {} if self.standardised else {"label_scale": None, "link": self.link}

    @override
    def targets(self, labels: torch.Tensor) -> torch.Tensor:
        return (self._standardised(labels) if self.standardised else labels).float().unsqueeze(1)

    @override
    def divergence(self, outputs: torch.Tensor, teacher: torch.Tensor, temperature: float) -> torch.Tensor:
        """The squared difference of the two standardised numbers, divided by the squared temperature."""
        return ((self._predicted(outputs) - teacher.squeeze(1).double()) / temperature).square().float()

    @override
    def some_labels(self, inputs: Inputs) -> torch.Tensor:
        return torch.full((count_rows(inputs),), self.mean, dtype=torch.float64)

    @override
    def measure(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The standardised label, its square, the squared error and the absolute error of standardised numbers."""
        true = self._standardised(labels)
        error = self._predicted(outputs) - true
        return torch.stack([true, true**2, error**2, error.abs()], dim=1)

    @override
    def figures(self, sums: Sequence[float], weight: float) -> dict[str, float]:
        """R² (the share of explained variance), the root mean squared error, and the mean absolute error."""
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
        """Count the rows in each cell: the true number gives the column, the predicted number the row."""
        true, predicted = (_cell(values) for values in (self._standardised(labels), self._predicted(outputs)))
        counts += torch.bincount(predicted * CELLS + true, minlength=self.count_size)

    @override
    def pictures(self, counts: NDArray[np.float64], class_names: Sequence[str]) -> "dict[str, Figure]":
        from sparkdl.tracking.figures import predicted_over_true

        extent = self.mean - REACH * self.std, self.mean + REACH * self.std
        return {"predicted": predicted_over_true(np.reshape(counts, (CELLS, CELLS)), extent)}

    @override
    def answers(self, outputs: torch.Tensor, label_names: pa.Array, *, top_k: int) -> list[pa.Array]:
        """The predicted number."""
        return [pa.array(self.values(outputs).squeeze(1).numpy())]

    def values(self, outputs: torch.Tensor) -> torch.Tensor:
        """The predicted numbers in the unit of the labels, float64 of shape (n, 1)."""
        if self.standardised:
            return outputs.double() * self.std + self.mean
        return outputs.double().exp() if self.link == "log" else outputs.double()

    def _predicted(self, outputs: torch.Tensor) -> torch.Tensor:
        """The predicted numbers, standardised, float64 of shape (n,)."""
        return (outputs.double() if self.standardised else self._standardised(self.values(outputs))).squeeze(1)

    def _standardised(self, labels: torch.Tensor) -> torch.Tensor:
        return (labels.double() - self.mean) / self.std


def _cell(values: torch.Tensor) -> torch.Tensor:
    """The index of the cell of a standardised number."""
    return ((values.double() + REACH) / (2 * REACH) * CELLS).long().clamp(0, CELLS - 1)
