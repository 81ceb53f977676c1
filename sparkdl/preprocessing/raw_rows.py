"""Raw columns in the types that preprocessing was fitted on."""

import re
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sparkdl.errors import DataError
from sparkdl.preprocessing.numbers import nearest_decimals
from sparkdl.preprocessing.values import Column, doubles

__all__ = ["as_fitted"]

_WHOLE = {"tinyint": pa.int8(), "smallint": pa.int16(), "int": pa.int32(), "bigint": pa.int64()}
_FLOATS = {"float": pa.float32(), "double": pa.float64()}
_TIMES = {"date": pa.date32(), "timestamp": pa.timestamp("us", "UTC"), "timestamp_ntz": pa.timestamp("us")}
_SHOWN = 3
"""Rows that an error names."""


def as_fitted(column: pa.Array, name: str, sql_type: str) -> Column:
    """A raw column in the Spark SQL type ``sql_type`` of the training rows. Runs anywhere.

    Numbers of other types are taken where they are the same number in that type. Raises :class:`DataError`, with the
    first rows, where they are not, and for columns that hold something else.
    """
    if sql_type == "vector":
        return _vectors(column, name)
    if sql_type.startswith("array<"):
        element = sql_type.removeprefix("array<").removesuffix(">")
        kind = {**_WHOLE, **_FLOATS, "string": pa.string(), "boolean": pa.bool_()}.get(element)
        return column if kind is None else _cast(column, pa.list_(kind), name, sql_type)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_null(column.type):
        column = column.cast(pa.string() if sql_type == "string" else _TIMES.get(sql_type, pa.float64()))
    if sql_type == "string":
        texts = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
        return _cast(column, pa.string(), name, sql_type, fits=texts or pa.types.is_integer(column.type))
    if sql_type in _TIMES:
        return _cast(column, _TIMES[sql_type], name, sql_type, fits=pa.types.is_temporal(column.type))
    if not _is_number(column.type):
        raise _other_type(column, name, sql_type)
    if sql_type == "boolean":
        return column if pa.types.is_boolean(column.type) else pc.not_equal(column.cast(pa.float64(), safe=False), 0.0)
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    if sql_type in _WHOLE:
        return _whole(column, name, sql_type)
    if match := re.fullmatch(r"decimal\((\d+),(\d+)\)", sql_type):
        return _decimals(column, pa.decimal128(int(match[1]), int(match[2])), name, sql_type)
    if sql_type not in _FLOATS:
        raise _other_type(column, name, sql_type)
    if pa.types.is_decimal(column.type):
        column = pa.array(doubles(column), from_pandas=True)
    return column.cast(_FLOATS[sql_type], safe=False)


def _whole(column: pa.Array, name: str, sql_type: str) -> pa.Array:
    kind = _WHOLE[sql_type]
    limits = np.iinfo(kind.to_pandas_dtype())
    if pa.types.is_integer(column.type):
        numbers, wrong = column, [] if column.type == kind else _beyond(column, limits.min, limits.max)
    else:
        values = column.to_pylist()
        there = [value is not None and value == value for value in values]
        wrong = [
            row
            for row, value in enumerate(values)
            if there[row] and not (limits.min <= value <= limits.max and value == int(value))
        ]
        numbers = pa.array(
            [int(value) if is_there else None for value, is_there in zip(values, there, strict=True)]
            if not wrong
            else [None] * len(values),
            pa.int64(),
        )
    _refuse(column, wrong, name, sql_type)
    return numbers.cast(kind)


def _beyond(column: pa.Array, least: int, largest: int) -> list[int]:
    values = column.to_pylist()
    return [row for row, value in enumerate(values) if value is not None and not least <= value <= largest]


def _decimals(column: pa.Array, kind: pa.DataType, name: str, sql_type: str) -> pa.Array:
    if column.type == kind:
        return column
    if pa.types.is_floating(column.type):
        found = nearest_decimals(doubles(column), kind)
    else:
        exact = [None if value is None else Decimal(value) for value in column.to_pylist()]
        found = nearest_decimals(np.array([np.nan if value is None else float(value) for value in exact]), kind)
    missing = np.asarray(column.is_null()) | np.isnan(doubles(column))
    _refuse(column, list(np.flatnonzero(np.asarray(found.is_null()) & ~missing)), name, sql_type)
    return found


def _vectors(column: pa.Array, name: str) -> NDArray[np.float64]:
    """Lists of numbers, all of one length, as a matrix."""
    lists = pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
    lists = lists or pa.types.is_fixed_size_list(column.type)
    if not lists or not _is_number(column.type.value_type):
        raise _other_type(column, name, "vector")
    if column.null_count or column.flatten().null_count:
        raise DataError(f"the column {name!r} is null or lacks a number in some rows; fill or drop them")
    lengths = np.asarray(column.value_lengths()) if not pa.types.is_fixed_size_list(column.type) else None
    width = int(lengths[0]) if lengths is not None and len(lengths) else 0
    if lengths is None:
        width = column.type.list_size
    elif len(lengths) and (lengths != width).any():
        raise DataError(f"the vectors of column {name!r} are {min(lengths)} to {max(lengths)} wide; they must be alike")
    return doubles(column.flatten()).reshape(len(column), width)


def _is_number(kind: pa.DataType) -> bool:
    tests: tuple[Any, ...] = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean)
    return any(test(kind) for test in tests)


def _cast(column: pa.Array, kind: pa.DataType, name: str, sql_type: str, *, fits: bool = True) -> pa.Array:
    if not fits:
        raise _other_type(column, name, sql_type)
    try:
        return column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise _other_type(column, name, sql_type) from None


def _other_type(column: pa.Array, name: str, sql_type: str) -> DataError:
    return DataError(f"column {name!r} holds {column.type}, and the model was trained on {sql_type}")


def _refuse(column: pa.Array, wrong: list[int], name: str, sql_type: str) -> None:
    if wrong:
        shown = ", ".join(f"{column[int(row)].as_py()} in row {row}" for row in wrong[:_SHOWN])
        more = f" and {len(wrong) - _SHOWN:,} more" if len(wrong) > _SHOWN else ""
        raise DataError(f"column {name!r}: {shown}{more} is no {sql_type}, which the model was trained on")
