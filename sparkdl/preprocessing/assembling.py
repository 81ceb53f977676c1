"""Stages that assemble columns to one vector, or check a vector's width."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from typing_extensions import override

from sparkdl.errors import DataError
from sparkdl.preprocessing.saved import SavedStage
from sparkdl.preprocessing.scaling import vectors_of
from sparkdl.preprocessing.stage import FittedStage
from sparkdl.preprocessing.values import Column, SparseVectors, doubles, find, offsets_of

__all__ = ["Assemble", "ExpectWidth"]

_CACHED_BYTES = 1 << 18
"""The size of the blocks of rows that are filled column by column, so that a block stays in the processor's cache."""


@dataclass(frozen=True)
class Assemble(FittedStage):
    """``VectorAssembler`` that keeps missing values: numbers and vectors become one vector, where null is NaN.

    The result is sparse if any input is.
    """

    inputs: tuple[str, ...]
    output: str
    kind: Literal["float32", "float64"] = "float64"
    """The type of the result. The last stage writes float32 directly, which saves a conversion."""

    @classmethod
    @override
    def read(cls, saved: SavedStage) -> Self:
        saved.require(handleInvalid="keep")
        return cls(saved.inputs, saved.output)

    @override
    def transform(self, columns: dict[str, Column]) -> dict[str, Column]:
        parts = [_part(find(columns, name), name) for name in self.inputs]
        whole = [part for part in parts if isinstance(part, np.ndarray)]
        if len(whole) < len(parts):
            return {self.output: _beside([_sparse(part) for part in parts])}
        return {self.output: _stacked(whole, self.kind)}


@dataclass(frozen=True)
class ExpectWidth(FittedStage):
    """``VectorSizeHint``: checks that the vectors of a column have the same width as in training."""

    column: str
    width: int

    @classmethod
    @override
    def read(cls, saved: SavedStage) -> Self:
        saved.require(handleInvalid="optimistic")
        return cls(saved.input, saved.parameter("size", int))

    @override
    def transform(self, columns: dict[str, Column]) -> dict[str, Column]:
        vectors_of(columns, self.column, self.width)
        return {}

    @property
    @override
    def reads(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    @override
    def writes(self) -> tuple[str, ...]:
        return ()

    @property
    @override
    def needs(self) -> dict[str, int | None]:
        return {self.column: self.width}


def _part(column: Column, name: str) -> NDArray[Any] | SparseVectors:
    if not isinstance(column, pa.Array):
        return column
    if pa.types.is_nested(column.type):
        raise DataError(f"the column {name!r} holds lists, whose lengths may differ")
    if pa.types.is_float32(column.type) and not column.null_count:
        numbers: NDArray[np.float32] = column.to_numpy()
        return numbers[:, None]
    try:
        return doubles(column)[:, None]
    except DataError:
        raise DataError(f"the column {name!r} holds {column.type}, which is not a number") from None


def _stacked(parts: Sequence[NDArray[Any]], kind: str) -> NDArray[Any]:
    """Matrices side by side."""
    matrix = np.empty((len(parts[0]), sum(part.shape[1] for part in parts)), kind)
    ends = np.cumsum([part.shape[1] for part in parts])
    at_once = max(_CACHED_BYTES // max(matrix[:1].nbytes, 1), 1)
    with np.errstate(over="ignore"):  # too large for float32 becomes infinity, as in Spark
        for first in range(0, len(matrix), at_once):
            rows = slice(first, first + at_once)
            for part, end in zip(parts, ends, strict=True):
                places = matrix[rows, end - part.shape[1] : end]
                np.add(part[rows], 0.0, out=places)  # turns -0 into 0, as Spark's assembler does
    return matrix


def _sparse(part: NDArray[Any] | SparseVectors) -> SparseVectors:
    """The values that are not zero."""
    if isinstance(part, SparseVectors):
        kept = part.values != 0
        counts = np.bincount(part.rows[kept], minlength=len(part.offsets) - 1)
        return SparseVectors(part.width, offsets_of(counts), part.indices[kept], part.values[kept])
    rows, indices = np.nonzero(part)
    values = part[rows, indices].astype(np.float64)
    return SparseVectors(part.shape[1], offsets_of(np.bincount(rows, minlength=len(part))), indices, values)


def _beside(parts: Sequence[SparseVectors]) -> SparseVectors:
    begins = offsets_of(np.array([part.width for part in parts]))
    rows = np.concatenate([part.rows for part in parts])
    order = np.argsort(rows, kind="stable")
    indices = np.concatenate([part.indices + begin for part, begin in zip(parts, begins, strict=False)])
    values = np.concatenate([part.values for part in parts])
    lengths = sum(np.diff(part.offsets) for part in parts)
    return SparseVectors(int(begins[-1]), offsets_of(np.asarray(lengths)), indices[order], values[order])
