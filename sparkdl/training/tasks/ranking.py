"""Some classes of a row with their probabilities, as a column."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["PAIRS", "ranked"]

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
    rows, k = classes.shape
    offsets = pa.array(np.arange(rows + 1, dtype=np.int32) * k)
    first = pa.array(np.arange(rows, dtype=np.int64) * k)
    return [labels.take(first), doubles.take(first), pa.ListArray.from_arrays(offsets, pairs)]
