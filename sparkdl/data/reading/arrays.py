"""Turns Arrow columns into arrays of numbers, without copying if the memory layout already fits."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sparkdl.data.card import InputSpec
from sparkdl.data.class_indices import class_indices
from sparkdl.errors import DataError

__all__ = ["decode", "decode_labels", "require_finite", "to_binary"]


def decode(column: pa.Array | pa.ChunkedArray, input: InputSpec) -> NDArray[Any]:
    """One Arrow column as an array of rows, each of shape ``input.shape``. Runs anywhere.

    An ``image`` column is binary with height x width x channels bytes per row, or Spark's image struct; a ``vector``
    column is a list of numbers. A single chunk without nulls of the exact type is returned as a read-only view.
    Raises :class:`DataError`, with their number, if rows are null or have another size.
    """
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    arrays = [_decode_chunk(chunk, input) for chunk in chunks]
    if len(arrays) == 1:
        return arrays[0]
    return np.concatenate(arrays) if arrays else np.empty((0, *input.shape), dtype=input.dtype)


def require_finite(values: NDArray[Any], input: InputSpec) -> None:
    """Raise :class:`DataError` for NaN, infinity, and values beyond float32, which training rows cannot have.

    The output of a network may be finite for them nevertheless, such as for minus infinity before a ReLU.
    """
    if values.dtype != np.uint8 and not np.isfinite(values).all():
        raise DataError(f"column {input.column!r} has values that are NaN, infinite or beyond float32")


def decode_labels(column: pa.ChunkedArray, label_names: Sequence[str]) -> NDArray[Any]:
    """Labels as numbers; lists of names become ones for the row's classes and zeros for others. Runs anywhere."""
    if not pa.types.is_list(column.type):
        return np.asarray(column.to_numpy())
    lists = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    classes = class_indices(lists.flatten(), label_names).to_numpy()
    labels = np.zeros((len(lists), len(label_names)), np.uint8)
    labels[np.repeat(np.arange(len(lists)), pc.list_value_length(lists).to_numpy()), classes] = 1
    return labels


def to_binary(values: NDArray[np.generic]) -> pa.Array:
    """Each row's bytes as one binary value."""
    flat = np.ascontiguousarray(values).reshape(len(values), -1)
    width = flat.shape[1]
    offsets = np.arange(0, (len(values) + 1) * width, width, dtype=np.int32)
    return pa.Array.from_buffers(
        pa.binary(), len(values), [None, pa.py_buffer(offsets), pa.py_buffer(flat.reshape(-1))]
    )


def _decode_chunk(chunk: pa.Array, input: InputSpec) -> NDArray[Any]:
    if chunk.null_count:
        raise DataError(f"column {input.column!r} has {chunk.null_count} null rows; fill or drop them")
    if pa.types.is_struct(chunk.type):
        _expect_shape(chunk, input)
        chunk = chunk.field("data")
    values = _flat_bytes(chunk, input) if input.kind == "image" else _flat_floats(chunk, input)
    return values.reshape(len(chunk), *input.shape)


def _flat_bytes(chunk: pa.Array, input: InputSpec) -> NDArray[np.uint8]:
    width = input.row_bytes
    if pa.types.is_fixed_size_binary(chunk.type):
        _expect(chunk.type.byte_width == width, len(chunk), input)
        return np.frombuffer(chunk.buffers()[1], np.uint8, len(chunk) * width, chunk.offset * width)
    if not (pa.types.is_binary(chunk.type) or pa.types.is_large_binary(chunk.type)):
        raise DataError(f"column {input.column!r} must be binary with {width} bytes a row, not {chunk.type}")
    offset_type = np.int64 if pa.types.is_large_binary(chunk.type) else np.int32
    start = _uniform_start(chunk, offset_type, width, input)
    data = chunk.buffers()[2]
    return np.frombuffer(data, np.uint8, len(chunk) * width, start) if len(chunk) else np.empty(0, np.uint8)


def _flat_floats(chunk: pa.Array, input: InputSpec) -> NDArray[np.float32]:
    width = math.prod(input.shape)
    if pa.types.is_fixed_size_list(chunk.type):
        _expect(chunk.type.list_size == width, len(chunk), input)
        values = chunk.values.slice(chunk.offset * width, len(chunk) * width)
    elif pa.types.is_list(chunk.type) or pa.types.is_large_list(chunk.type):
        offset_type = np.int64 if pa.types.is_large_list(chunk.type) else np.int32
        values = chunk.values.slice(_uniform_start(chunk, offset_type, width, input), len(chunk) * width)
    else:
        raise DataError(f"column {input.column!r} must hold lists of {width} numbers, not {chunk.type}")
    if values.null_count:
        raise DataError(f"column {input.column!r} has {values.null_count} null elements; fill them")
    array: NDArray[np.float32] = values.to_numpy(zero_copy_only=False).astype(np.float32, copy=False)
    return array


def _uniform_start(chunk: pa.Array, offset_type: type, width: int, input: InputSpec) -> int:
    """The offset of the first row in the chunk's data. Checks that every row is ``width`` long."""
    if not len(chunk):
        return 0
    itemsize = np.dtype(offset_type).itemsize
    offsets: NDArray[Any] = np.frombuffer(chunk.buffers()[1], offset_type, len(chunk) + 1, chunk.offset * itemsize)
    wrong = int(np.count_nonzero(np.diff(offsets) != width))
    _expect(not wrong, wrong, input)
    return int(offsets[0])


def _expect_shape(images: pa.StructArray, input: InputSpec) -> None:
    """Check the shapes of images: two shapes may have the same number of bytes."""
    found = np.stack([images.field(name).to_numpy() for name in ("height", "width", "nChannels")], axis=1)
    wrong = int((found != input.shape).any(axis=1).sum())
    _expect(not wrong, wrong, input)


def _expect(fits: bool, wrong: int, input: InputSpec) -> None:
    if not fits:
        raise DataError(
            f"column {input.column!r}: {wrong} rows do not have the size of {input.shape} {input.dtype} "
            f"({math.prod(input.shape)} values); give every row that size"
        )
