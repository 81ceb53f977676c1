"""What a column can hold between stages, and how the forms become one another."""

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sparkdl.errors import DataError

__all__ = ["SPARSE", "Column", "SparseVectors", "as_floats", "as_structs", "doubles", "find", "offsets_of", "whole"]

SPARSE = pa.struct(
    {"type": pa.int8(), "size": pa.int32(), "indices": pa.list_(pa.int32()), "values": pa.list_(pa.float64())}
)
"""How Spark writes a vector: type 0 with indices, or type 1 with all values."""


class SparseVectors(NamedTuple):
    """A vector a row, of which only some values are kept: row i has those from ``offsets[i]`` to ``offsets[i + 1]``."""

    width: int
    offsets: NDArray[np.int64]
    indices: NDArray[np.int64]
    """In increasing order within a row."""
    values: NDArray[np.float64]

    @property
    def rows(self) -> NDArray[np.int64]:
        """The row of each value."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))


Column: TypeAlias = pa.Array | NDArray[np.float64] | SparseVectors
"""Numbers, texts, times and lists are Arrow arrays, where null is a missing value; vectors are a matrix of float64 with
a row each, or sparse."""


def find(columns: dict[str, Column], name: str) -> Column:
    """A column by its name; Spark, which fitted the stages, does not tell capitals apart.

    Raises :class:`DataError` for a column that is not there.
    """
    if name in columns:
        return columns[name]
    alike = [known for known in columns if known.lower() == name.lower()]
    if len(alike) != 1:
        raise DataError(f"preprocessing reads a column {name!r}; there are {', '.join(columns)}")
    return columns[alike[0]]


def doubles(column: pa.Array) -> NDArray[np.float64]:
    """Numbers or truth values as float64, NaN where there is none. Raises :class:`DataError` for what is no number."""
    kind = column.type
    if pa.types.is_decimal(kind):
        found = [np.nan if value is None else float(value) for value in column.to_pylist()]
        return np.array(found, np.float64)  # Arrow's own cast does not always give the nearest float
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise DataError(f"preprocessing takes numbers, and found a column of {kind}")
    if pa.types.is_boolean(kind):
        column = column.cast(pa.int8())
    values: NDArray[np.float64] = pc.fill_null(column.cast(pa.float64(), safe=False), np.nan).to_numpy(
        zero_copy_only=False
    )
    return values


def whole(vectors: NDArray[np.float64] | SparseVectors) -> NDArray[np.float64]:
    """All values of vectors, float64 of shape (rows, width)."""
    if not isinstance(vectors, SparseVectors):
        return vectors
    matrix = np.zeros((len(vectors.offsets) - 1, vectors.width))
    matrix[vectors.rows, vectors.indices] = vectors.values
    return matrix


def offsets_of(lengths: NDArray[Any]) -> NDArray[np.int64]:
    """Where rows of these lengths begin when they lie behind one another, and where the last one ends."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def as_floats(vectors: NDArray[np.float64] | SparseVectors) -> pa.Array:
    """Vectors as lists of float32, as Spark's ``vector_to_array`` makes them."""
    matrix = whole(vectors)
    with np.errstate(over="ignore"):  # beyond float32 is infinity, as in Spark
        values = pa.array(matrix.astype(np.float32).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(values, matrix.shape[1])


def as_structs(vectors: NDArray[np.float64] | SparseVectors) -> pa.Array:
    """Vectors in the form of :data:`SPARSE`."""
    if isinstance(vectors, SparseVectors):
        offsets = pa.array(vectors.offsets.astype(np.int32))
        kind, count = 0, len(vectors.offsets) - 1
        indices = pa.ListArray.from_arrays(offsets, pa.array(vectors.indices.astype(np.int32)))
        values = pa.ListArray.from_arrays(offsets, pa.array(vectors.values))
        width = vectors.width
    else:
        kind, (count, width) = 1, vectors.shape
        indices = pa.nulls(count, SPARSE.field("indices").type)
        offsets = pa.array(np.arange(count + 1, dtype=np.int32) * width)
        values = pa.ListArray.from_arrays(offsets, pa.array(vectors.reshape(-1)))
    parts = [pa.array(np.full(count, kind, np.int8)), pa.array(np.full(count, width, np.int32)), indices, values]
    return pa.StructArray.from_arrays(parts, fields=list(SPARSE))
