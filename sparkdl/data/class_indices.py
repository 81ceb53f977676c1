"""Turns a label into its class index: its position in the class names of the training rows. Runs in tasks."""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["class_indices"]


def class_indices(labels: pa.Array | pa.ChunkedArray, names: pa.Array | Sequence[str]) -> pa.Array | pa.ChunkedArray:
    """The class index of each label, int64; null for a label that is not among the ``names``.

    For dictionary-encoded labels, each distinct label is looked up once.
    """
    known = names if isinstance(names, pa.Array | pa.ChunkedArray) else pa.array(names, pa.string())
    if pa.types.is_dictionary(labels.type):
        return class_indices(labels.dictionary, known).take(labels.indices)
    return pc.index_in(labels, value_set=known).cast(pa.int64())
