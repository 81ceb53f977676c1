"""Orders rows so that batches have rows of similar lengths and little padding. Like all of the order, it is pure."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparkdl.data.ragged import Ragged

__all__ = ["Grid", "by_length", "total_lengths"]


class Grid(NamedTuple):
    """The boundaries of batches in a window of a shard's rows."""

    start: int
    """The window's first row, among those of the shard."""
    batch_size: int
    random: np.random.Generator
    """Decides the order of the window's batches. It is the same on all ranks, so that their lengths in a step agree."""


def total_lengths(inputs: Mapping[str, Any]) -> NDArray[np.int64] | None:
    """The length of each row, summed over its sequences; None if no input has variable length.

    Sparse inputs do not count, because they are dense in a batch.
    """
    lengths = [each.lengths for each in inputs.values() if isinstance(each, Ragged) and each.values.dtype.names is None]
    return np.sum(lengths, axis=0) if lengths else None


def by_length(lengths: NDArray[np.int64], grid: Grid) -> NDArray[np.int64]:
    """The order of a window's rows, in which each batch has rows of similar lengths. The given rows are shuffled.

    The batches that the window shares with the windows before and after it get its shortest rows, because padding them
    costs least.
    """
    rows = len(lengths)
    head = min(-grid.start % grid.batch_size, rows)
    tail = (rows - head) % grid.batch_size
    order = np.argsort(lengths, kind="stable")
    batches = order[head + tail :].reshape(-1, grid.batch_size)
    batches = batches[np.argsort(grid.random.random(len(batches)))]
    return np.concatenate([order[:head], batches.reshape(-1), order[head : head + tail]])
