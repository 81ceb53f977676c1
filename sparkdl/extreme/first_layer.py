"""The first layer: weights with one row per feature, which are summed and trained only for the features of a batch.

On a CPU, such a layer is limited by memory access. For wide rows, both passes are compiled loops that read each row
once; for narrow rows, and on a GPU, they are sparse products.
"""

import warnings
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from sparkdl.data import SparseBatch

__all__ = ["Occurrences", "Step", "add_up", "occurrences", "step_rows"]

# PyTorch warns at the first CSR tensor of every process; the operations used here are tested.
warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta", category=UserWarning)


WIDE = 256
"""Outputs from which on compiled loops pay on a CPU. Numba costs a task 100 MB and a second, and with the 32 or 224
linear outputs of ODP it made tasks no faster."""


class Occurrences(NamedTuple):
    """The m entries of a batch of n rows in which u features occur, sorted by rows and by features."""

    features: NDArray[np.int64]
    """Of shape (u,), in ascending order."""
    ends: NDArray[np.int64]
    """Of shape (n + 1,): where the entries of each row begin and end."""
    places: NDArray[np.int64]
    """Of shape (m,): the position, in ``features``, of each entry's feature."""
    values: NDArray[np.float32]
    """Of shape (m,)."""
    feature_ends: NDArray[np.int64]
    """Of shape (u + 1,): where the entries of each feature begin and end in the following arrays."""
    row_of: NDArray[np.int64]
    """Of shape (m,): the row of an entry."""
    feature_values: NDArray[np.float32]
    """Of shape (m,)."""


class Step(NamedTuple):
    """One step of the optimizer, whose step size for a row depends on its running mean of squared gradients."""

    rate: float
    memory: float
    """The decay of the running mean of squares."""
    weight: float
    """The sum of the weights in the running mean of a row that occurs in every batch: less than 1 at first."""
    epsilon: float


def occurrences(batch: SparseBatch) -> Occurrences:
    """Sort the entries of a batch by features."""
    ends, values = batch.offsets.numpy().astype(np.int64, copy=False), batch.values.numpy()
    features, places = np.unique(batch.indices.numpy(), return_inverse=True)
    by_feature = np.argsort(places, kind="stable")
    row_of = np.repeat(np.arange(len(ends) - 1), np.diff(ends))
    feature_ends = np.concatenate([[0], np.cumsum(np.bincount(places, minlength=len(features)))])
    return Occurrences(
        features.astype(np.int64, copy=False),
        ends,
        places,
        values,
        feature_ends,
        row_of[by_feature],
        values[by_feature],
    )


def add_up(table: torch.Tensor, found: Occurrences) -> torch.Tensor:
    """The weighted sums of the table's rows (features, w), of shape (n, w)."""
    return _sums_in_loops(table, found) if _in_loops(table) else _sums(table, found)


def step_rows(
    table: torch.Tensor, squares: torch.Tensor, found: Occurrences, gradient: torch.Tensor, step: Step
) -> None:
    """Train the rows of the batch's features, in place, by the gradient of their sums, of shape (n, w).

    ``squares``, of shape (features, parts), holds the running mean of squares of each part of a row.
    """
    (_step_in_loops if _in_loops(table) else _step)(table, squares, found, gradient, step)


def _in_loops(table: torch.Tensor) -> bool:
    return table.device.type == "cpu" and table.shape[1] >= WIDE


def _sums_in_loops(table: torch.Tensor, found: Occurrences) -> torch.Tensor:
    from sparkdl.extreme import loops  # imported only where needed, because it loads Numba

    sums = table.new_zeros(len(found.ends) - 1, table.shape[1])
    by_row = found.features, found.ends, found.places, found.values
    loops.in_threads(loops.add_up, len(sums), table.numpy(), *by_row, sums.numpy())
    return sums


def _step_in_loops(
    table: torch.Tensor, squares: torch.Tensor, found: Occurrences, gradient: torch.Tensor, step: Step
) -> None:
    from sparkdl.extreme import loops

    by_feature = found.features, found.feature_ends, found.row_of, found.feature_values
    arrays = table.numpy(), squares.numpy(), *by_feature, gradient.contiguous().numpy()
    loops.in_threads(loops.step_rows, len(found.features), *arrays, *map(np.float32, step))


def _sums(table: torch.Tensor, found: Occurrences) -> torch.Tensor:
    used = table.index_select(0, torch.from_numpy(found.features).to(table.device))
    sums: torch.Tensor = _matrix(found.ends, found.places, found.values, used) @ used
    return sums


def _step(table: torch.Tensor, squares: torch.Tensor, found: Occurrences, gradient: torch.Tensor, step: Step) -> None:
    features = torch.from_numpy(found.features).to(table.device)
    of_rows = _matrix(found.feature_ends, found.row_of, found.feature_values, gradient) @ gradient
    of_parts = of_rows.unflatten(1, (squares.shape[1], -1))
    means = squares.index_select(0, features).mul_(step.memory)
    means.add_(of_parts.square().mean(2), alpha=1 - step.memory)
    squares.index_copy_(0, features, means)
    scale = (means / step.weight).sqrt_().add_(step.epsilon)
    used = table.index_select(0, features)
    used.view_as(of_parts).addcdiv_(of_parts, scale.unsqueeze(2), value=-step.rate)
    table.index_copy_(0, features, used)


def _matrix(
    ends: NDArray[np.int64], columns: NDArray[np.int64], values: NDArray[np.float32], of: torch.Tensor
) -> torch.Tensor:
    """A matrix of compressed rows, to be multiplied with ``of``."""
    return torch.sparse_csr_tensor(
        torch.from_numpy(ends),
        torch.from_numpy(columns),
        torch.from_numpy(values),
        size=(len(ends) - 1, len(of)),
        device=of.device,
        check_invariants=False,
    )
