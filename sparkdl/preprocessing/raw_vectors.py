"""Reads raw columns of vectors: Spark's vectors, and lists of numbers or of texts that can be read as numbers."""

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sparkdl.errors import DataError
from sparkdl.preprocessing.values import SPARSE, SparseVectors, doubles, is_number, offsets_of

__all__ = ["is_list", "is_vector", "numbers_of_texts", "vectors"]


class _Parts(NamedTuple):
    """The values of all rows of a column, concatenated."""

    sizes: NDArray[np.int64]
    """The width of each row's vector."""
    lengths: NDArray[np.int64]
    """The number of values of each row."""
    values: NDArray[np.float64]
    places: NDArray[np.int64] | None
    """The index of each value in its vector; None if all vectors are dense."""
    refused: NDArray[np.bool_]
    """A mask of rows that are null, or have null elements where these are not allowed."""


def is_vector(kind: pa.DataType) -> bool:
    """Whether a type is that of Spark's vectors."""
    return bool(pa.types.is_struct(kind)) and [field.name for field in kind] == [field.name for field in SPARSE]


def is_list(kind: pa.DataType) -> bool:
    """Whether a type is one of lists."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def vectors(
    column: pa.Array, name: str, *, width: int | None = None, gaps: bool = False
) -> tuple[NDArray[np.float64] | SparseVectors, NDArray[np.bool_] | None]:
    """The vectors of a column, and a mask of rows without a vector of this width, or with missing numbers, or None.

    The vectors of these rows are zeros. With ``gaps``, rows may have missing numbers, which become NaN. Without a
    width, all vectors must have the same width. Raises :class:`DataError` if they do not, and for columns of other
    types.
    """
    parts = _parts_of_vectors(column) if is_vector(column.type) else _parts_of_lists(column, name, gaps=gaps)
    refused = parts.refused
    if width is None:
        found = parts.sizes[~refused]
        width = int(found[0]) if len(found) else 0
        if (found != width).any():
            raise DataError(
                f"the vectors of column {name!r} are {found.min()} to {found.max()} wide; they must be alike"
            )
    else:
        refused = refused | (parts.sizes != width)
    if not refused.any():
        return _as_vectors(parts, width), None
    kept = np.repeat(~refused, parts.lengths)
    if parts.places is None:
        matrix = np.zeros((len(column), width))
        matrix[~refused] = parts.values[kept].reshape(-1, width)
        return matrix, refused
    lengths = np.where(refused, 0, parts.lengths)
    return _as_vectors(_Parts(parts.sizes, lengths, parts.values[kept], parts.places[kept], refused), width), refused


def _as_vectors(parts: _Parts, width: int) -> NDArray[np.float64] | SparseVectors:
    if parts.places is None:
        return parts.values.reshape(len(parts.sizes), width)
    return SparseVectors(width, offsets_of(parts.lengths), parts.places, parts.values)


def _parts_of_lists(column: pa.Array, name: str, *, gaps: bool) -> _Parts:
    if is_list(column.type) and pa.types.is_string(column.type.value_type):
        column = numbers_of_texts(column)
    if not is_list(column.type) or not is_number(column.type.value_type):
        raise DataError(f"column {name!r} holds {column.type}, and the model was trained on vector")
    refused, lengths = np.array(column.is_null()), _lengths(column)
    values = column.flatten()
    if values.null_count and not gaps:
        rows = np.repeat(np.arange(len(column)), lengths)
        refused[rows[np.asarray(values.is_null())]] = True
    return _Parts(lengths, lengths, doubles(values), None, refused)


def _parts_of_vectors(column: pa.Array) -> _Parts:
    lists = pc.struct_field(column, "values")
    lengths, values = _lengths(lists), doubles(lists.flatten())
    refused = np.array(column.is_null())
    whole = np.asarray(pc.struct_field(column, "type").fill_null(1)) == 1
    if whole.all():
        return _Parts(lengths, lengths, values, None, refused)
    sizes = np.where(whole, lengths, np.asarray(pc.struct_field(column, "size").fill_null(0)))
    places = np.arange(len(values)) - np.repeat(offsets_of(lengths)[:-1], lengths)
    places[np.repeat(~whole, lengths)] = np.asarray(pc.struct_field(column, "indices").flatten())
    return _Parts(sizes, lengths, values, places, refused)


def _lengths(lists: pa.Array) -> NDArray[np.int64]:
    """The length of each list; 0 for null."""
    if pa.types.is_fixed_size_list(lists.type):
        return np.where(np.asarray(lists.is_null()), 0, lists.type.list_size)
    return np.asarray(lists.value_lengths().fill_null(0)).astype(np.int64)


def numbers_of_texts(column: pa.Array) -> pa.Array:
    """Lists of texts as lists of numbers; null for a text that is not a number."""
    found = pa.array([_number(text) for text in column.flatten().to_pylist()], pa.float64())
    absent = np.append(np.asarray(column.is_null()), False)
    offsets = offsets_of(_lengths(column)).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets, mask=absent if absent.any() else None), found)


def _number(text: Any) -> float | None:
    try:
        return float(text) if text is not None and text.isascii() and "_" not in text else None
    except ValueError:
        return None
