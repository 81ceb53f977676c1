"""Converts raw columns to the types on which preprocessing was fitted."""

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sparkdl.errors import DataError
from sparkdl.preprocessing.numbers import nearest_decimals
from sparkdl.preprocessing.raw_vectors import vectors
from sparkdl.preprocessing.values import Column, doubles, is_number

__all__ = ["as_fitted", "fitted_rows"]

_WHOLE = {"tinyint": pa.int8(), "smallint": pa.int16(), "int": pa.int32(), "bigint": pa.int64()}
_FLOATS = {"float": pa.float32(), "double": pa.float64()}
_TIMES = {"date": pa.date32(), "timestamp": pa.timestamp("us", "UTC"), "timestamp_ntz": pa.timestamp("us")}
_SHOWN = 3
"""The number of rows that an error shows."""


def as_fitted(column: pa.Array, name: str, sql_type: str) -> Column:
    """A raw column in the Spark SQL type ``sql_type`` of the training rows. Runs anywhere.

    Numbers of other types are accepted if their values fit ``sql_type``. Raises :class:`DataError` for rows that do not
    fit, with the first of them, and for columns of other types.
    """
    found, refused = fitted_rows(column, name, sql_type)
    wrong = np.flatnonzero(np.zeros(0) if refused is None else refused)
    if len(wrong) and sql_type == "vector":
        raise DataError(f"the column {name!r} is null or lacks a number in {len(wrong):,} rows; fill or drop them")
    if len(wrong):
        shown = ", ".join(f"{column[int(row)].as_py()} in row {row}" for row in wrong[:_SHOWN])
        more = f" and {len(wrong) - _SHOWN:,} more" if len(wrong) > _SHOWN else ""
        raise DataError(f"column {name!r}: {shown}{more} is no {sql_type}, which the model was trained on")
    return found


def fitted_rows(
    column: pa.Array, name: str, sql_type: str, *, width: int | None = None, gaps: bool = False
) -> tuple[Column, NDArray[np.bool_] | None]:
    """A raw column as in :func:`as_fitted`, and a mask of rows that do not fit the type, or None if all rows fit.

    Rows that do not fit become null, or a vector of zeros. Vectors must have the given ``width``, or equal widths
    without one; with ``gaps``, they may have missing numbers, which become NaN. Raises :class:`DataError` for columns
    of other types, and for vectors of different widths.
    """
    if sql_type == "vector":
        return vectors(column, name, width=width, gaps=gaps)
    if sql_type.startswith("array<"):
        element = sql_type.removeprefix("array<").removesuffix(">")
        kind = {**_WHOLE, **_FLOATS, "string": pa.string(), "boolean": pa.bool_()}.get(element)
        return column if kind is None else _cast(column, pa.list_(kind), name, sql_type), None
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_null(column.type):
        column = column.cast(pa.string() if sql_type == "string" else _TIMES.get(sql_type, pa.float64()))
    if sql_type == "string":
        texts = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
        return _cast(column, pa.string(), name, sql_type, fits=texts or pa.types.is_integer(column.type)), None
    if sql_type in _TIMES:
        return _cast(column, _TIMES[sql_type], name, sql_type, fits=pa.types.is_temporal(column.type)), None
    if not is_number(column.type):
        raise _other_type(column, name, sql_type)
    if sql_type == "boolean":
        truths = column if pa.types.is_boolean(column.type) else pc.not_equal(_floats(column), 0.0)
        return truths, None
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    if sql_type in _WHOLE:
        return _whole(column, _WHOLE[sql_type])
    if match := re.fullmatch(r"decimal\((\d+),(\d+)\)", sql_type):
        return _decimals(column, pa.decimal128(int(match[1]), int(match[2])))
    if sql_type not in _FLOATS:
        raise _other_type(column, name, sql_type)
    if pa.types.is_decimal(column.type):
        column = _floats(column)
    kind = _FLOATS[sql_type]
    return column if column.type == kind else column.cast(kind, safe=False), None


def _floats(column: pa.Array) -> pa.Array:
    """Numbers as float64; null stays null."""
    if pa.types.is_decimal(column.type):
        return pa.array(doubles(column), from_pandas=True)
    return column.cast(pa.float64(), safe=False)


def _whole(column: pa.Array, kind: pa.DataType) -> tuple[pa.Array, NDArray[np.bool_] | None]:
    """Numbers as integers of a type, with null for those that do not fit; and the mask of these, or None."""
    if column.type == kind:
        return column, None
    limits = np.iinfo(kind.to_pandas_dtype())
    missing = np.asarray(column.is_null())
    if pa.types.is_integer(column.type):
        values = (column.fill_null(0) if column.null_count else column).to_numpy()
        fits = (values >= limits.min) & (values <= limits.max)
    elif pa.types.is_decimal(column.type):
        found = [None if value is None or value != int(value) else int(value) for value in column.to_pylist()]
        fits = np.array([value is not None and limits.min <= value <= limits.max for value in found], bool)
        values = np.array([value if fit else 0 for value, fit in zip(found, fits, strict=True)], np.int64)
    else:
        values = doubles(column)
        missing = missing | np.isnan(values)
        fits = (values >= limits.min) & (values < limits.max + 1) & (values == np.trunc(values))
        values = np.where(fits, values, 0)
    refused = ~fits & ~missing
    whole = pa.array(np.where(fits, values, 0).astype(limits.dtype), kind, mask=~fits | missing)
    return whole, refused if refused.any() else None


def _decimals(column: pa.Array, kind: pa.DataType) -> tuple[pa.Array, NDArray[np.bool_] | None]:
    if column.type == kind:
        return column, None
    values = doubles(column)
    found = nearest_decimals(values, kind)
    refused = np.asarray(found.is_null()) & ~np.isnan(values)
    return found, refused if refused.any() else None


def _cast(column: pa.Array, kind: pa.DataType, name: str, sql_type: str, *, fits: bool = True) -> pa.Array:
    if not fits:
        raise _other_type(column, name, sql_type)
    try:
        return column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise _other_type(column, name, sql_type) from None


def _other_type(column: pa.Array, name: str, sql_type: str) -> DataError:
    return DataError(f"column {name!r} holds {column.type}, and the model was trained on {sql_type}")
