"""Rows of like lengths come into one batch, so that little of it is padding: a pure function, as all of the order."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparkdl.data.ragged import Ragged

__all__ = ["Grid", "by_length", "total_lengths"]


class Grid(NamedTuple):
    """Where batches begin in a window of a shard's rows."""

    start: int
    """The window's first row, among those of the shard."""
    batch_size: int
    random: np.random.Generator
    """Decides the order of the window's batches; the same on all ranks, so that their batches of a step are alike."""


def total_lengths(inputs: Mapping[str, Any]) -> NDArray[np.int64] | None:
    """How long rows are, all sequences of each together; None where none of the inputs differs in length.

    What is not zero of a sparse row does not count: it is whole in a batch.
    """
    lengths = [each.lengths for each in inputs.values() if isinstance(each, Ragged) and each.values.dtype.names is None]
    return np.sum(lengths, axis=0) if lengths else None


def by_length(lengths: NDArray[np.int64], grid: Grid) -> NDArray[np.int64]:
    """The order of a window's rows, in which each batch has rows of like lengths. The rows are in random order.

    The batches that the window shares with those before and behind it get its shortest rows, of which padding costs
    least.
    """
    rows = len(lengths)
    head = min(-grid.start % grid.batch_size, rows)
    tail = (rows - head) % grid.batch_size
    order = np.argsort(lengths, kind="stable")
    batches = order[head + tail :].reshape(-1, grid.batch_size)
    batches = batches[np.argsort(grid.random.random(len(batches)))]
    return np.concatenate([order[:head], batches.reshape(-1), order[head : head + tail]])
