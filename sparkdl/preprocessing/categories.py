"""Categories become numbers."""

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
    """``StringIndexerModel`` that keeps what is new: the place of a category among those of the training rows.

    What training rows do not have, and null, is one more category, the last one.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    categories: tuple[tuple[str, ...], ...]
    """Of each column, as Spark writes them: numbers are texts."""

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
    """The place of a category by its hash, which several may share (Weinberger et al., 2009, arXiv 0902.2206).

    It is XXH64 of how Spark writes it, modulo the number of places; null is written as an empty text.
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
    """The categories of columns, the most frequent first."""

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
    """Categories as Spark writes them; what is missing is none."""
    column = _checked(column, name).drop_null()
    if pa.types.is_floating(column.type):
        column = column.filter(pc.invert(pc.is_nan(column)))
    if column.type == pa.string():
        return column
    texts, rows = _distinct(column)
    return texts.take(rows)


def _distinct(column: pa.Array) -> tuple[pa.Array, pa.Array]:
    """The categories of a column without nulls as Spark writes them, and which one each row has."""
    kind = column.type
    distinct = (_bits(column) if pa.types.is_floating(kind) else column).dictionary_encode()
    values = distinct.dictionary.view(kind) if pa.types.is_floating(kind) else distinct.dictionary
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        values = pa.array(map(as_java, values), pa.string())
    return values.cast(pa.string()), distinct.indices


def _checked(column: Column, name: str) -> pa.Array:
    """A column of categories. Raises :class:`DataError` for another one."""
    if not isinstance(column, pa.Array) or pa.types.is_nested(column.type) or pa.types.is_temporal(column.type):
        raise DataError(f"the column {name!r} holds no texts or numbers, which categories are made of")
    return column


def _places(column: Column, name: str, categories: Sequence[str]) -> pa.Array:
    values, known = _comparable(_checked(column, name), categories)
    found = pc.index_in(values, value_set=known)
    return pc.fill_null(found, len(categories)).cast(pa.float64())


def _comparable(column: pa.Array, categories: Sequence[str]) -> tuple[pa.Array, pa.Array]:
    """Values and categories as what is equal where Spark's texts are; each text that Java writes is of one number."""
    kind = column.type
    if pa.types.is_floating(kind):
        # Java writes every float with a point; "1" is a category of no float.
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
    """Floats as their bits: -0.0 is not 0.0, and NaN is itself."""
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
