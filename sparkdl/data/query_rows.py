"""The rows of a group that is ranked within, which are one example of a dataset: in its files and in batches.

A file holds such a group as :mod:`sparkdl.data.sparse_rows` holds a sparse row: the features that are not zero, where
those of the group's row r are numbered from r * width on, and one label after another.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparkdl.errors import DataError

__all__ = ["LARGEST_QUERY", "NO_ROW", "joined", "whole_queries"]

LARGEST_QUERY = 4096
"""Rows of a group, at most: a batch holds its groups whole, and each with the places of the largest one."""
_MOST_FEATURES = np.iinfo(np.int32).max
"""Of all rows of a group, zeros too: 8 GiB."""
NO_ROW = -1.0
"""Stands for the label where a group has no more rows."""


def joined(
    indices: NDArray[np.int32], offsets: NDArray[np.int64], queries: NDArray[np.int64], width: int
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """The features of sparse rows as those of groups: group i begins with row ``queries[i]``. Runs in a task.

    Raises :class:`DataError` for a group that no batch could hold whole.
    """
    largest = int(np.diff(queries).max(initial=0))
    if largest * width > _MOST_FEATURES:
        raise DataError(
            f"a group of {largest:,} rows with {width:,} features each is too large: a batch holds it whole, zeros too."
            " Leave out some of its rows, or some features"
        )
    rows = np.arange(queries[-1]) - np.repeat(queries[:-1], np.diff(queries))
    return (indices + np.repeat(rows, np.diff(offsets)) * width).astype(np.int32), offsets[queries]


def whole_queries(inputs: Any, labels: Any, width: int) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Groups as a batch has them. Runs on a rank.

    ``inputs`` and ``labels`` are ``scipy.sparse.csr_array`` with a line for each group, as a file has it. Returns all
    rows, of shape (rows, width), and labels of shape (groups, rows of the largest one) with :data:`NO_ROW` at the ends.
    """
    sizes = np.diff(labels.indptr).astype(np.int64)
    begins = (np.cumsum(sizes) - sizes) * width
    rows = np.zeros((sizes.sum(), width), np.float32)
    rows.reshape(-1)[inputs.indices + np.repeat(begins, np.diff(inputs.indptr))] = inputs.data
    places = np.arange(sizes.max(initial=0))
    padded = np.full((len(sizes), len(places)), NO_ROW)
    padded[places < sizes[:, None]] = labels.data
    return rows, padded
