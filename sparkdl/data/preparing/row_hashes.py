"""The hashes of rows, computed of Arrow columns: the same bits as :func:`sparkdl.data.preparing.order.hash_of`."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sparkdl.preprocessing.hashes import xxhash64, xxhash64_of_numbers

__all__ = ["hash_rows", "is_hashable"]

_LONG_DIGITS = 18
"""Decimals of up to so many digits are hashed as a long."""
_AT_ONCE = 4096
"""Rows whose hashes are computed together: they stay in the processor's cache."""
_PLAIN = {
    "boolean": np.int32,
    "tinyint": np.int32,
    "smallint": np.int32,
    "int": np.int32,
    "bigint": np.int64,
    "float": np.int32,
    "double": np.int64,
    "date": np.int32,
    "timestamp": np.int64,
    "timestamp_ntz": np.int64,
}
"""How wide the number is that Spark hashes in place of a value, by the value's type."""


def is_hashable(sql_type: str) -> bool:
    """Whether :func:`hash_rows` takes columns of this Spark SQL type."""
    digits = sql_type.removeprefix("decimal(").partition(",")[0]
    return sql_type in _PLAIN or sql_type == "string" or (digits.isdecimal() and int(digits) <= _LONG_DIGITS)


def hash_rows(columns: Sequence[pa.Array], seeds: Sequence[tuple[str, int]]) -> NDArray[np.int64]:
    """For each salt and seed a hash of each row, int64 of shape (seeds, rows). Runs anywhere.

    Raises :class:`TypeError` for columns of other types than :func:`is_hashable` names.
    """
    count = len(columns[0])
    hashes = np.empty((len(seeds), count), np.uint64)
    hashes[:] = np.array([_begun(salt, seed) for salt, seed in seeds])[:, None]
    values = [_Numbers.of(column) if not pa.types.is_string(column.type) else column for column in columns]
    for begin in range(0, count, _AT_ONCE):
        part = np.ascontiguousarray(hashes[:, begin : begin + _AT_ONCE])
        for number, each in enumerate(values):
            xxhash64_of_numbers(np.array([number], np.int32), part)
            _chain(each, begin, part)
        hashes[:, begin : begin + _AT_ONCE] = part
    return hashes.view(np.int64)


class _Numbers:
    """What Spark hashes in place of a column's values."""

    def __init__(self, values: NDArray[np.signedinteger[Any]], missing: NDArray[np.bool_] | None) -> None:
        self.values, self.missing = values, missing

    @classmethod
    def of(cls, column: pa.Array) -> "_Numbers":
        missing = np.asarray(column.is_null()) if column.null_count else None
        kind = column.type
        if pa.types.is_floating(kind):
            floats = (column.fill_null(0.0) if column.null_count else column).to_numpy(zero_copy_only=False) + 0
            floats[np.isnan(floats)] = np.nan  # of many bit patterns the one that Java has
            return cls(floats.view(np.int32 if kind == pa.float32() else np.int64), missing)
        if pa.types.is_decimal(kind):  # the lower half of 128 bits
            halves = np.frombuffer(column.buffers()[1], np.int64, 2 * len(column), 16 * column.offset)
            return cls(halves[::2].copy(), missing)
        if pa.types.is_boolean(kind):
            column, kind = column.cast(pa.int8()), pa.int8()
        elif pa.types.is_date32(kind):
            column, kind = column.view(pa.int32()), pa.int32()
        elif pa.types.is_timestamp(kind):
            column, kind = column.view(pa.int64()), pa.int64()
        elif not pa.types.is_signed_integer(kind):
            raise TypeError(f"no hash is known of a column of {kind}")
        numbers = (pc.fill_null(column, 0) if column.null_count else column).to_numpy(zero_copy_only=False)
        return cls(numbers.astype(np.int64 if kind == pa.int64() else np.int32, copy=False), missing)


def _begun(salt: str, seed: int) -> np.uint64:
    """The hash of what comes before a row's values."""
    hashes = xxhash64(pa.array([salt])).view(np.uint64)
    fits = np.iinfo(np.int32).min <= seed <= np.iinfo(np.int32).max
    xxhash64_of_numbers(np.array([seed], np.int32 if fits else np.int64), hashes)
    return np.uint64(hashes[0])


def _chain(column: "_Numbers | pa.Array", begin: int, hashes: NDArray[np.uint64]) -> None:
    """Go on from the hashes of what comes before. What is null changes no hash."""
    count = hashes.shape[1]
    missing, before = None, hashes
    if isinstance(column, _Numbers):
        if column.missing is not None:
            missing, before = column.missing[begin : begin + count], hashes.copy()
        xxhash64_of_numbers(column.values[begin : begin + count], hashes)
    else:
        texts = column.slice(begin, count)
        if texts.null_count:
            missing, before = np.asarray(texts.is_null()), hashes.copy()
        for row in hashes:
            row[:] = xxhash64(texts, row).view(np.uint64)
    if missing is not None:
        hashes[:, missing] = before[:, missing]
