"""Arrow columns with the likeliest classes of each row and their probabilities, or with the values of all classes."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["lists", "pairs_type", "ranked"]


def pairs_type(labels: pa.DataType) -> pa.DataType:
    """The Arrow type of a list of labels with their probabilities."""
    return pa.list_(pa.struct([("label", labels), ("probability", pa.float64())]))


def ranked(
    label_names: pa.Array, classes: npt.NDArray[np.int64], probabilities: npt.NDArray[np.float64]
) -> list[pa.Array]:
    """Three columns: the likeliest label, its probability, and a list (:func:`pairs_type`) of all k given classes.

    ``classes`` and ``probabilities`` are of shape (n, k), the likeliest first.
    """
    labels, doubles = label_names.take(pa.array(classes.flatten())), pa.array(probabilities.flatten())
    found = pa.StructArray.from_arrays([labels, doubles], names=["label", "probability"])
    first = pa.array(np.arange(len(classes), dtype=np.int64) * classes.shape[1])
    return [labels.take(first), doubles.take(first), _cut(found, classes.shape)]


def lists(values: npt.NDArray[np.floating[Any]]) -> pa.Array:
    """The rows of a matrix as a column of lists."""
    return _cut(pa.array(values.flatten()), values.shape)


def _cut(values: pa.Array, shape: tuple[int, ...]) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(np.arange(shape[0] + 1, dtype=np.int32) * shape[1]), values)
