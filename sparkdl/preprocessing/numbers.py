"""Stages that fill in missing numbers, and their learners."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_HALF_UP, Decimal, localcontext
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from typing_extensions import override

from sparkdl.errors import DataError
from sparkdl.preprocessing.learner import Facts, Learner
from sparkdl.preprocessing.saved import SavedStage
from sparkdl.preprocessing.stage import FittedStage
from sparkdl.preprocessing.sums import ExactSums, exact, sums_of
from sparkdl.preprocessing.values import Column, doubles, find

__all__ = ["Impute", "LearnMeans", "LearnMedians", "LearnModes", "nearest_decimals"]

_BITS = 21
"""The bits of a median that each pass over the rows finds."""


@dataclass(frozen=True)
class Impute(FittedStage):
    """``ImputerModel``: replaces null and NaN by the column's surrogate; a column keeps its type."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    surrogates: tuple[float, ...]

    @classmethod
    @override
    def read(cls, saved: SavedStage) -> Self:
        saved.require(missingValue="NaN")
        fitted = saved.fitted()
        surrogates = [fitted.get(name) for name in saved.names("inputCol")]
        if not all(isinstance(value, float) for value in surrogates):
            raise saved.damaged(f"its surrogates are {surrogates!r}")
        return cls(saved.inputs, saved.outputs, tuple(map(float, surrogates)))  # type: ignore[arg-type]

    @override
    def transform(self, columns: dict[str, Column]) -> dict[str, Column]:
        return {
            output: _filled(columns, name, surrogate)
            for name, output, surrogate in zip(self.inputs, self.outputs, self.surrogates, strict=True)
        }


@dataclass(frozen=True)
class _LearnImpute(Learner):
    """The base of learners of surrogates, which are computed from the numbers that are not missing."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    named: tuple[str, ...]
    """The raw columns that the inputs were made from; errors name these."""

    def _require(self, found: Iterable[int]) -> None:
        """Raise :class:`DataError` for a column without values; ``found`` has the number of values of each column."""
        for name, values in zip(self.named, found, strict=True):
            if not values:
                raise DataError(
                    f"column {name!r} has no value in the rows of the split 'train', so `impute` has nothing to fill"
                    " in; leave it out of `features`"
                )

    def _stage(self, surrogates: Iterable[float]) -> tuple[Impute]:
        return (Impute(self.inputs, self.outputs, tuple(surrogates)),)


class LearnMeans(_LearnImpute):
    """Learns means, which are exact but for one rounding."""

    @override
    def sums(self, columns: dict[str, Column]) -> ExactSums:
        values = np.stack([_numbers(columns, name) for name in self.inputs], axis=1)
        there = ~np.isnan(values)
        return sums_of(np.concatenate([np.where(there, values, 0.0), there], axis=1))

    @override
    def learn(self, facts: Facts) -> tuple[Impute]:
        count = len(self.inputs)
        self._require(facts.sums[0, count:].astype(int).tolist())
        found = [(exact(facts.sums, place), exact(facts.sums, count + place)) for place in range(count)]
        return self._stage(float(total / rows) for total, rows in found)


class LearnModes(_LearnImpute):
    """Learns the most frequent number; of equally frequent ones, the smallest."""

    @override
    def texts(self, columns: dict[str, Column]) -> Sequence[pa.Array]:
        return [_as_texts(_there(columns, name)) for name in self.inputs]

    @override
    def learn(self, facts: Facts) -> tuple[Impute]:
        self._require(len(facts.counts.get(place, {})) for place in range(len(self.inputs)))
        return self._stage(
            min((-times, float(text)) for text, times in facts.counts[place].items())[1]
            for place in range(len(self.inputs))
        )


@dataclass(frozen=True)
class LearnMedians(_LearnImpute):
    """Learns medians, the lower of two, with 31 bits of precision: exact for float32 and integers of 31 bits.

    Numbers are sorted by their bits, after those of negative numbers have been inverted. The first pass over the rows
    counts numbers by their first bits; the second pass counts those with the median's first bits by their next bits.
    """

    beginnings: tuple[int, ...] = ()
    """The first bits of each column's median; empty before the first pass."""
    below: tuple[int, ...] = ()
    """For each column, how many numbers with the median's first bits are below the median."""

    @override
    def texts(self, columns: dict[str, Column]) -> Sequence[pa.Array]:
        found = []
        for place, name in enumerate(self.inputs):
            ordered = _ordered(_there(columns, name))
            first = ordered >> np.uint64(64 - _BITS - 1)
            if self.beginnings:
                same = ordered[first == self.beginnings[place]]
                first = same >> np.uint64(64 - 2 * _BITS - 1)
            found.append(_as_texts(first))
        return found

    @override
    def learn(self, facts: Facts) -> "tuple[FittedStage | Learner, ...]":
        self._require(len(facts.counts.get(place, {})) for place in range(len(self.inputs)))
        all_counts = [facts.counts[place] for place in range(len(self.inputs))]
        below = self.below or [(sum(counts.values()) - 1) // 2 for counts in all_counts]
        found = [_at(counts, wanted) for counts, wanted in zip(all_counts, below, strict=True)]
        beginnings, left = zip(*found, strict=True)
        if not self.beginnings:
            return (replace(self, beginnings=beginnings, below=left),)
        return self._stage(_numbers_of(np.array(beginnings, np.uint64)).tolist())


def _at(counts: Mapping[str, int], below: int) -> tuple[int, int]:
    """The number at position ``below`` in sorted order, and the position's offset among equal numbers.

    ``counts`` has the frequencies of whole numbers.
    """
    for number, times in sorted((int(text), times) for text, times in counts.items()):
        if below < times:
            return number, below
        below -= times
    raise ValueError("there are fewer numbers than were counted")


def _ordered(values: NDArray[np.float64]) -> NDArray[np.uint64]:
    """Unsigned integers that sort in the same order as the values."""
    bits = (values + 0.0).view(np.uint64)
    return np.where(bits >> np.uint64(63), ~bits, bits | np.uint64(1 << 63))


def _numbers_of(beginnings: NDArray[np.uint64]) -> NDArray[np.float64]:
    """The inverse of :func:`_ordered` for first bits: of all numbers with these bits, the one nearest to zero."""
    ordered = beginnings << np.uint64(64 - 2 * _BITS - 1)
    positive = ordered >> np.uint64(63) == 1
    behind = np.uint64((1 << (64 - 2 * _BITS - 1)) - 1)
    return np.where(positive, ordered & np.uint64((1 << 63) - 1), ~(ordered | behind)).view(np.float64)


def _there(columns: dict[str, Column], name: str) -> NDArray[np.float64]:
    """The numbers of a column that are not missing."""
    values = _numbers(columns, name)
    return values[~np.isnan(values)]


def _as_texts(values: NDArray[Any]) -> pa.Array:
    """Numbers as texts, as Python writes them; each distinct number is converted once."""
    distinct = pa.array(values).dictionary_encode()
    return pa.array(map(repr, distinct.dictionary.to_pylist()), pa.string()).take(distinct.indices)


def _numbers(columns: dict[str, Column], name: str) -> NDArray[np.float64]:
    column = find(columns, name)
    if not isinstance(column, pa.Array):
        raise DataError(f"the column {name!r} holds vectors, in which no number is missing")
    return doubles(column)


def _filled(columns: dict[str, Column], name: str, surrogate: float) -> pa.Array:
    column = find(columns, name)
    if not isinstance(column, pa.Array) or not (
        pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_decimal(column.type)
    ):
        raise DataError(f"the column {name!r} holds no numbers, so missing ones cannot be filled in")
    values = doubles(column)
    missing = np.isnan(values)
    if not missing.any():
        return column
    values = np.where(missing, surrogate, values)
    if pa.types.is_decimal(column.type):
        return nearest_decimals(values, column.type)
    if pa.types.is_integer(column.type):  # rounded towards zero, as Spark casts a double
        return pa.array(np.trunc(values).astype(column.type.to_pandas_dtype()))
    return pa.array(values.astype(column.type.to_pandas_dtype()))


def nearest_decimals(values: NDArray[np.float64], kind: pa.DataType) -> pa.Array:
    """Numbers as decimals of a type, with halves rounded away from zero as in Spark; null if they do not fit."""
    place = Decimal(1).scaleb(-kind.scale)
    with localcontext() as context:
        context.prec = 100
        found = [Decimal(repr(float(value))) for value in values]
        near = [value.quantize(place, ROUND_HALF_UP) if value.is_finite() else None for value in found]
    limit = Decimal(1).scaleb(kind.precision - kind.scale)
    return pa.array([None if value is None or abs(value) >= limit else value for value in near], kind)
