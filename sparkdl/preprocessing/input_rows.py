"""Converts columns to the values of a named input, and finds rows that cannot be used. Runs anywhere.

A row's input is one binary value for all kinds of inputs, which Spark and scoring tasks pass on without conversion.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkdl.preprocessing.lists import NO_ID, as_ids
from sparkdl.preprocessing.values import Column, SparseVectors, as_matrix, offsets_of, whole

__all__ = ["FEATURE", "InputForm", "MadeInput", "as_binary", "made_input", "numbers_of"]

FEATURE = np.dtype([("index", np.int32), ("value", np.float32)])
"""A nonzero element of a sparse row."""


class InputForm(NamedTuple):
    """The properties of an input that its values depend on."""

    kind: str
    """The kind of :class:`~sparkdl.inputs.spec.InputSpec`."""
    dtype: str
    vocabulary: int | None = None
    """Ids must be below this number; None allows any id."""
    max_length: int | None = None

    @property
    def numbers(self) -> "np.dtype[Any]":
        """The NumPy type of the elements of a value."""
        return FEATURE if self.kind == "sparse" else np.dtype(self.dtype)


class MadeInput(NamedTuple):
    """One input of some rows."""

    values: pa.Array
    """One binary value per row."""
    wrong: Mapping[str, NDArray[np.bool_]]
    """Masks of rows that cannot be used, by problem: ``empty``, ``long``, ``id`` or ``number``; problems without rows
    are left out."""


def made_input(made: Column, form: InputForm) -> MadeInput:
    """The values of an input, from the column that its stages have made."""
    if isinstance(made, pa.Array):
        return _of_lists(made, form)
    if form.kind == "sparse":
        return _of_sparse(made, form)
    if form.kind == "ids":
        ids = as_ids(whole(made))
        return MadeInput(as_binary(ids.reshape(-1), _even(ids)), _told({"id": _no_ids(ids, form).any(axis=1)}))
    matrix = np.ascontiguousarray(as_matrix(made))
    return MadeInput(as_binary(matrix.reshape(-1), _even(matrix)), _told({"number": ~np.isfinite(matrix).all(axis=1)}))


def as_binary(numbers: NDArray[Any], offsets: NDArray[np.int64]) -> pa.Array:
    """One binary value per row, with the bytes of the row's numbers."""
    begins = (offsets * numbers.itemsize).astype(np.int32)
    content = pa.py_buffer(np.ascontiguousarray(numbers))
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, pa.py_buffer(begins), content])


def numbers_of(values: pa.Array, kind: "np.dtype[Any]") -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The numbers of all rows of a binary column, and the offset of each row; null has no numbers."""
    _, begins, content = values.buffers()
    offsets = np.frombuffer(begins, np.int32, len(values) + 1, 4 * values.offset).astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    bytes_ = b"" if content is None else memoryview(content)[first:last]
    return np.frombuffer(bytes_, kind), (offsets - first) // kind.itemsize


def _of_lists(lists: pa.Array, form: InputForm) -> MadeInput:
    lengths = np.asarray(lists.value_lengths()).astype(np.int64)
    numbers, offsets = lists.flatten().to_numpy(zero_copy_only=False), offsets_of(lengths)
    bad = _no_ids(numbers, form) if form.dtype == "int32" else ~np.isfinite(numbers)
    wrong = {"empty": lengths == 0}
    if form.max_length is not None:
        wrong["long"] = lengths > form.max_length
    if bad.any():
        rows = np.repeat(np.arange(len(lengths)), lengths)
        wrong["id" if form.dtype == "int32" else "number"] = np.bincount(rows[bad], minlength=len(lengths)) > 0
    return MadeInput(as_binary(numbers, offsets), _told(wrong))


def _of_sparse(made: NDArray[np.floating[Any]] | SparseVectors, form: InputForm) -> MadeInput:
    if isinstance(made, SparseVectors):
        rows, indices, values = made.rows, made.indices, made.values
        count = len(made.offsets) - 1
    else:
        rows, indices = np.nonzero(made)
        values, count = made[rows, indices], len(made)
    with np.errstate(over="ignore"):
        features = np.empty(len(values), FEATURE)
        features["index"], features["value"] = indices, values
    kept = features["value"] != 0
    offsets = offsets_of(np.bincount(rows[kept], minlength=count))
    bad = np.bincount(rows[~np.isfinite(features["value"])], minlength=count) > 0
    return MadeInput(as_binary(features[kept], offsets), _told({"number": bad}))


def _no_ids(ids: NDArray[np.int32], form: InputForm) -> NDArray[np.bool_]:
    bad: NDArray[np.bool_] = ids == NO_ID
    return bad if form.vocabulary is None else bad | (ids >= form.vocabulary)


def _even(matrix: NDArray[Any]) -> NDArray[np.int64]:
    return np.arange(len(matrix) + 1, dtype=np.int64) * matrix.shape[1]


def _told(wrong: dict[str, NDArray[np.bool_]]) -> dict[str, NDArray[np.bool_]]:
    return {what: rows for what, rows in wrong.items() if rows.any()}
