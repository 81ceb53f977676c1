"""The forms of columns between stages, and conversions between them."""

from collections.abc import Callable
from decimal import Decimal
from typing import Annotated, Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import PlainSerializer, PlainValidator

from sparkdl.errors import DataError

__all__ = [
    "SPARSE",
    "Column",
    "FittedFloats",
    "FittedTexts",
    "SparseVectors",
    "as_floats",
    "as_java",
    "as_matrix",
    "as_structs",
    "doubles",
    "find",
    "is_number",
    "offsets_of",
    "whole",
]

SPARSE = pa.struct(
    {"type": pa.int8(), "size": pa.int32(), "indices": pa.list_(pa.int32()), "values": pa.list_(pa.float64())}
)
"""The Arrow type of Spark's vectors: ``type`` is 0 for sparse vectors with indices, 1 for dense ones."""


class SparseVectors(NamedTuple):
    """Sparse vectors, one per row: the elements of row i are those from ``offsets[i]`` to ``offsets[i + 1]``."""

    width: int
    offsets: NDArray[np.int64]
    indices: NDArray[np.int64]
    """The index of each element in its vector, in increasing order within a row."""
    values: NDArray[np.float64]

    @property
    def rows(self) -> NDArray[np.int64]:
        """The row of each value."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))


def _as_array(values: Any) -> NDArray[np.float64]:
    found = np.array(values, np.float64)
    if found.ndim != 1:
        raise ValueError("these are no numbers one after another")
    return found


def _as_texts(values: Any) -> pa.Array:
    try:
        return values if isinstance(values, pa.Array) else pa.array(values, pa.string())
    except (pa.ArrowException, TypeError) as error:
        raise ValueError(f"these are no texts: {error}") from None


FittedFloats = Annotated[
    NDArray[np.float64], PlainValidator(_as_array), PlainSerializer(lambda values: values.tolist(), return_type=list)
]
"""Fitted numbers; an array in memory, a list in files."""
FittedTexts = Annotated[
    pa.Array, PlainValidator(_as_texts), PlainSerializer(lambda values: values.to_pylist(), return_type=list)
]
"""Fitted texts; an Arrow array in memory, a list in files."""
Column: TypeAlias = pa.Array | NDArray[np.float64] | SparseVectors
"""Numbers, texts, times and lists are Arrow arrays, where null is a missing value. Vectors are the rows of a float64
matrix, or sparse. The last stage may return a float32 matrix."""
_EXACT = 2**53
"""A float64 represents all whole numbers up to this one exactly."""
_LARGEST_SCALE = 22
"""A float64 represents powers of ten up to this exponent exactly."""


def find(columns: dict[str, Column], name: str) -> Column:
    """A column by its name, which is not case-sensitive, as in Spark.

    Raises :class:`DataError` if the column does not exist.
    """
    if name in columns:
        return columns[name]
    alike = [known for known in columns if known.lower() == name.lower()]
    if len(alike) != 1:
        raise DataError(f"preprocessing reads a column {name!r}; there are {', '.join(columns)}")
    return columns[alike[0]]


def doubles(column: pa.Array) -> NDArray[np.float64]:
    """Numbers or truth values as float64, NaN for null. Raises :class:`DataError` for columns of other types."""
    kind = column.type
    if pa.types.is_decimal(kind):
        return _doubles_of_decimals(column)
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise DataError(f"preprocessing needs numbers, but found a column of {kind}")
    if pa.types.is_boolean(kind):
        column = column.cast(pa.int8())
    numbers = column.cast(pa.float64(), safe=False)
    values: NDArray[np.float64] = (numbers.fill_null(np.nan) if numbers.null_count else numbers).to_numpy()
    return values


def _doubles_of_decimals(column: pa.Array) -> NDArray[np.float64]:
    """The nearest float64 of each decimal; Arrow's own cast is not always exact.

    The quotient of two exactly represented numbers is rounded correctly (IEEE 754), which covers most decimals.
    """
    if len(column) and pa.types.is_decimal128(column.type) and 0 <= column.type.scale <= _LARGEST_SCALE:
        filled = column.fill_null(Decimal(0)) if column.null_count else column
        words = np.frombuffer(filled.buffers()[1], np.int64)[2 * filled.offset : 2 * (filled.offset + len(filled))]
        low, high = words[::2], words[1::2]
        if ((high == low >> 63) & (low >= -_EXACT) & (low <= _EXACT)).all():
            quotients = low / 10.0**column.type.scale
            return np.where(np.asarray(column.is_null()), np.nan, quotients) if column.null_count else quotients
    return np.array([np.nan if value is None else float(value) for value in column.to_pylist()], np.float64)


def as_java(value: pa.Scalar) -> str:
    """A number as Spark writes it."""
    if pa.types.is_decimal(value.type):
        return format(value.as_py(), "f")
    if not pa.types.is_floating(value.type):
        return str(value)
    number = np.dtype(value.type.to_pandas_dtype()).type(value.as_py())
    if number == 0 or 1e-3 <= abs(number) < 1e7:
        return np.format_float_positional(number, trim="0")
    if not np.isfinite(number):
        return "NaN" if np.isnan(number) else "Infinity" if number > 0 else "-Infinity"
    return np.format_float_scientific(number, trim="0", exp_digits=1).replace("e+", "E").replace("e", "E")


def is_number(kind: pa.DataType) -> bool:
    """Whether a type is one of numbers or truth values."""
    tests: tuple[Callable[[pa.DataType], bool], ...] = (
        pa.types.is_integer,
        pa.types.is_floating,
        pa.types.is_decimal,
        pa.types.is_boolean,
    )
    return any(test(kind) for test in tests)


def whole(vectors: NDArray[np.float64] | SparseVectors) -> NDArray[np.float64]:
    """Vectors as a dense float64 matrix of shape (rows, width)."""
    if not isinstance(vectors, SparseVectors):
        return vectors
    matrix = np.zeros((len(vectors.offsets) - 1, vectors.width))
    matrix[vectors.rows, vectors.indices] = vectors.values
    return matrix


def offsets_of(lengths: NDArray[Any]) -> NDArray[np.int64]:
    """The offsets of concatenated rows of these lengths, and the end of the last one."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def as_matrix(vectors: NDArray[np.floating[Any]] | SparseVectors) -> NDArray[np.float32]:
    """Vectors as float32 of shape (rows, width)."""
    with np.errstate(over="ignore"):  # too large for float32 becomes infinity, as in Spark
        matrix = whole(vectors) if isinstance(vectors, SparseVectors) else vectors
        return matrix.astype(np.float32, copy=False)


def as_floats(vectors: NDArray[np.floating[Any]] | SparseVectors) -> pa.Array:
    """Vectors as lists of float32, as Spark's ``vector_to_array`` makes them."""
    matrix = as_matrix(vectors)
    return pa.FixedSizeListArray.from_arrays(pa.array(matrix.reshape(-1)), matrix.shape[1])


def as_structs(vectors: NDArray[np.float64] | SparseVectors) -> pa.Array:
    """Vectors as structs of the type :data:`SPARSE`."""
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
        values = pa.ListArray.from_arrays(offsets, pa.array(vectors.reshape(-1).astype(np.float64, copy=False)))
    parts = [pa.array(np.full(count, kind, np.int8)), pa.array(np.full(count, width, np.int32)), indices, values]
    return pa.StructArray.from_arrays(parts, fields=list(SPARSE))
