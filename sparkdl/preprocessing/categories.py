"""Stages that turn categories into numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from sparkdl.errors import DataError
from sparkdl.preprocessing.hashes import xxhash64
from sparkdl.preprocessing.learner import Facts, Learner, most_frequent_first
from sparkdl.preprocessing.saved import SavedStage
from sparkdl.preprocessing.stage import FittedStage
from sparkdl.preprocessing.values import Column, as_java, find

__all__ = ["HashCategories", "Index", "LearnIndex"]


@dataclass(frozen=True)
class Index(FittedStage):
    """``StringIndexerModel`` that keeps new categories: the index of a category among those of the training rows.

    Null and categories that the training rows do not have share one more index, the last one.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    categories: tuple[tuple[str, ...], ...]
    """The categories of each column as texts; numbers are written as in Spark."""

    @classmethod
    @override
    def read(cls, saved: SavedStage) -> Self:
        saved.require(handleInvalid="keep")
        found = saved.fitted().get("labelsArray")
        if not isinstance(found, list) or len(found) != len(saved.inputs):
            raise saved.damaged("it does not have the categories of each of its columns")
        if not all(isinstance(each, list) and all(isinstance(name, str) for name in each) for each in found):
            raise saved.damaged("its categories are no texts")
        return cls(saved.inputs, saved.outputs, tuple(map(tuple, found)))

    @override
    def transform(self, columns: dict[str, Column]) -> dict[str, Column]:
        return {
            output: _places(find(columns, name), name, categories)
            for name, output, categories in zip(self.inputs, self.outputs, self.categories, strict=True)
        }


@dataclass(frozen=True)
class HashCategories(FittedStage):
    """Feature hashing: an index from a category's hash, which categories may share (Weinberger et al., 2009).

    The index is XXH64 of the category's text, as Spark writes it, modulo the number of indices. The text of null is
    empty.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    places: int

    @override
    def transform(self, columns: dict[str, Column]) -> dict[str, Column]:
        names = zip(self.inputs, self.outputs, strict=True)
        return {output: self._hashed(_checked(find(columns, name), name)) for name, output in names}

    def _hashed(self, column: pa.Array) -> pa.Array:
        there = np.asarray(column.is_valid())
        texts, rows = _distinct(column.drop_null())
        found = np.full(len(column), xxhash64(pa.array([""]))[0] % self.places, np.float64)
        found[there] = np.mod(xxhash64(texts), self.places)[np.asarray(rows)]
        return pa.array(found)


@dataclass(frozen=True)
class LearnIndex(Learner):
    """Learns the categories of columns, sorted by descending frequency."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @override
    def texts(self, columns: dict[str, Column]) -> Sequence[pa.Array]:
        return [_written(find(columns, name), name) for name in self.inputs]

    @override
    def learn(self, facts: Facts) -> tuple[Index]:
        found = [most_frequent_first(facts.counts.get(place, {})) for place in range(len(self.inputs))]
        return (Index(self.inputs, self.outputs, tuple(map(tuple, found))),)


def _written(column: Column, name: str) -> pa.Array:
    """Categories as Spark writes them, without missing ones."""
    column = _checked(column, name).drop_null()
    if pa.types.is_floating(column.type):
        column = column.filter(pc.invert(pc.is_nan(column)))
    if column.type == pa.string():
        return column
    texts, rows = _distinct(column)
    return texts.take(rows)


def _distinct(column: pa.Array) -> tuple[pa.Array, pa.Array]:
    """The distinct categories of a column without nulls, as Spark writes them, and the index of each row's category."""
    kind = column.type
    distinct = (_bits(column) if pa.types.is_floating(kind) else column).dictionary_encode()
    values = distinct.dictionary.view(kind) if pa.types.is_floating(kind) else distinct.dictionary
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        values = pa.array(map(as_java, values), pa.string())
    return values.cast(pa.string()), distinct.indices


def _checked(column: Column, name: str) -> pa.Array:
    """The column, if it is one of categories. Raises :class:`DataError` for other types."""
    if not isinstance(column, pa.Array) or pa.types.is_nested(column.type) or pa.types.is_temporal(column.type):
        raise DataError(f"the column {name!r} holds no texts or numbers, which categories are made of")
    return column


def _places(column: Column, name: str, categories: Sequence[str]) -> pa.Array:
    values, known = _comparable(_checked(column, name), categories)
    found = pc.index_in(values, value_set=known)
    return pc.fill_null(found, len(categories)).cast(pa.float64())


def _comparable(column: pa.Array, categories: Sequence[str]) -> tuple[pa.Array, pa.Array]:
    """Values and categories in a type in which they are equal if and only if their texts in Spark are."""
    kind = column.type
    if pa.types.is_floating(kind):
        # Java writes every float with a point, so that the category "1" cannot be that of a float.
        written = [float(text) if "." in text or text in _NOT_FINITE else None for text in categories]
        values = pa.array(written, kind)
        return _bits(column), _bits(values)
    if pa.types.is_decimal(kind):
        return column, pa.array([_decimal(text, kind) for text in categories], kind)
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        column = column.cast(pa.string())
    return column, pa.array(categories, pa.string())


_NOT_FINITE = {"NaN", "Infinity", "-Infinity"}


def _bits(values: pa.Array) -> pa.Array:
    """The bits of floats, by which -0.0 differs from 0.0, and NaN is equal to itself."""
    kind = pa.int64() if values.type == pa.float64() else pa.int32()
    there = np.asarray(values.is_null())
    floats = np.array(values.fill_null(0.0).to_numpy(zero_copy_only=False))
    floats[np.isnan(floats)] = np.nan
    return pa.array(floats.view(kind.to_pandas_dtype()), kind, mask=there)


def _decimal(text: str, kind: pa.DataType) -> Decimal | None:
    try:
        value = Decimal(text)
        return value if value == value.quantize(Decimal(1).scaleb(-kind.scale)) else None
    except InvalidOperation:
        return None
