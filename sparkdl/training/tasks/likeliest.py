"""Some classes of a row with their probabilities, or all, as a column."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["PAIRS", "lists", "ranked"]

PAIRS = pa.list_(pa.struct([("label", pa.string()), ("probability", pa.float64())]))
"""The likeliest labels of a row, the first one first."""


def ranked(
    label_names: pa.Array, classes: npt.NDArray[np.int64], probabilities: npt.NDArray[np.float64]
) -> list[pa.Array]:
    """Each row's likeliest label, its probability, and :data:`PAIRS` of all that are given.

    ``classes`` and ``probabilities`` are of shape (n, k), the likeliest first.
    """
    labels, doubles = label_names.take(pa.array(classes.flatten())), pa.array(probabilities.flatten())
    pairs = pa.StructArray.from_arrays([labels, doubles], names=["label", "probability"])
    first = pa.array(np.arange(len(classes), dtype=np.int64) * classes.shape[1])
    return [labels.take(first), doubles.take(first), _cut(pairs, classes.shape)]


def lists(values: npt.NDArray[np.float64]) -> pa.Array:
    """The rows of a matrix."""
    return _cut(pa.array(values.flatten()), values.shape)


def _cut(values: pa.Array, shape: tuple[int, ...]) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(np.arange(shape[0] + 1, dtype=np.int32) * shape[1]), values)
