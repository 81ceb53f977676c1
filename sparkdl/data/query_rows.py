"""Groups of rows for ranking, each of which is one example of a dataset: their format in files and in batches.

A file stores a group like a sparse row (:mod:`sparkdl.data.sparse_rows`): its nonzero features, where the indices of
the group's row r begin at r * width, and the labels of its rows one after another.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparkdl.errors import DataError

__all__ = ["LARGEST_QUERY", "NO_ROW", "joined", "whole_queries"]

LARGEST_QUERY = 4096
"""The most rows of a group: a batch contains whole groups, each padded to the size of the largest one."""
_MOST_FEATURES = np.iinfo(np.int32).max
"""The most features of all rows of a group, including zeros: 8 GiB."""
NO_ROW = -1.0
"""The label of padding, behind the rows of a group."""


def joined(
    indices: NDArray[np.int32], offsets: NDArray[np.int64], queries: NDArray[np.int64], width: int
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """The features of sparse rows as features of groups; group i begins with row ``queries[i]``. Runs in a task.

    Raises :class:`DataError` for a group that is too large for a batch.
    """
    largest = int(np.diff(queries).max(initial=0))
    if largest * width > _MOST_FEATURES:
        raise DataError(
            f"a group of {largest:,} rows with {width:,} features each is too large for a batch, which contains it as a"
            " whole, including zeros. Leave out some of its rows, or some features"
        )
    rows = np.arange(queries[-1]) - np.repeat(queries[:-1], np.diff(queries))
    return (indices + np.repeat(rows, np.diff(offsets)) * width).astype(np.int32), offsets[queries]


def whole_queries(inputs: Any, labels: Any, width: int) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Groups in the format of a batch. Runs on a rank.

    ``inputs`` and ``labels`` are ``scipy.sparse.csr_array`` with one line per group, as in files. Returns all rows, of
    shape (rows, width), and labels of shape (groups, rows of the largest group), padded with :data:`NO_ROW`.
    """
    sizes = np.diff(labels.indptr).astype(np.int64)
    begins = (np.cumsum(sizes) - sizes) * width
    rows = np.zeros((sizes.sum(), width), np.float32)
    rows.reshape(-1)[inputs.indices + np.repeat(begins, np.diff(inputs.indptr))] = inputs.data
    places = np.arange(sizes.max(initial=0))
    padded = np.full((len(sizes), len(places)), NO_ROW)
    padded[places < sizes[:, None]] = labels.data
    return rows, padded
