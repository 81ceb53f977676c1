"""Stages that standardise and normalise vectors."""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from sparkdl.errors import DataError
from sparkdl.preprocessing.learner import Facts, Learner
from sparkdl.preprocessing.saved import SavedStage
from sparkdl.preprocessing.stage import FittedStage, UnfittedStage
from sparkdl.preprocessing.sums import ExactSums, exact, sums_of, sums_of_squares
from sparkdl.preprocessing.values import Column, FittedFloats, SparseVectors, find, whole

__all__ = ["LearnScale", "Normalize", "Standardise", "vectors_of"]


def vectors_of(columns: dict[str, Column], name: str, width: int | None = None) -> NDArray[np.float64] | SparseVectors:
    """A column of vectors. Raises :class:`DataError` for other columns, and for vectors of another width."""
    column = find(columns, name)
    if not isinstance(column, SparseVectors | np.ndarray):
        raise DataError(f"the column {name!r} holds no vectors")
    found = column.width if isinstance(column, SparseVectors) else column.shape[1]
    if width is not None and found != width:
        raise DataError(f"the vectors of column {name!r} are {found} wide, but the model was trained on {width}")
    return column


@dataclass(frozen=True)
class Standardise(FittedStage):
    """``StandardScalerModel``: subtracts the mean of each element and divides by its standard deviation.

    Elements that were constant in training become zero.
    """

    input: str
    output: str
    mean: FittedFloats | None
    scale: FittedFloats | None
    """1 / standard deviation, or 0 where that is 0. With None, elements are not scaled, or for ``mean`` not shifted."""
    width: int

    @classmethod
    @override
    def read(cls, saved: SavedStage) -> Self:
        fitted = saved.fitted()
        mean, std = saved.vector(fitted.get("mean")), saved.vector(fitted.get("std"))
        if mean.shape != std.shape:
            raise saved.damaged(f"it has {len(mean)} means and {len(std)} deviations")
        scale = np.divide(1.0, std, out=np.zeros_like(std), where=std != 0)
        centred, scaled = saved.parameter("withMean", bool), saved.parameter("withStd", bool)
        return cls(saved.input, saved.output, mean if centred else None, scale if scaled else None, len(mean))

    @override
    def transform(self, columns: dict[str, Column]) -> dict[str, Column]:
        vectors = vectors_of(columns, self.input, self.width)
        if self.mean is None and isinstance(vectors, SparseVectors):
            values = vectors.values if self.scale is None else vectors.values * self.scale[vectors.indices]
            return {self.output: vectors._replace(values=values)}
        matrix = whole(vectors)
        if self.mean is None:
            return {self.output: matrix if self.scale is None else matrix * self.scale}
        centred = matrix - self.mean
        return {self.output: centred if self.scale is None else np.multiply(centred, self.scale, out=centred)}


@dataclass(frozen=True)
class LearnScale(Learner):
    """Learns mean and standard deviation of each element of a vector from exact sums."""

    input: str
    output: str

    @override
    def sums(self, columns: dict[str, Column]) -> ExactSums:
        matrix = whole(vectors_of(columns, self.input))
        count = np.array([[float(len(matrix))], [0.0]])
        return np.concatenate([count, sums_of(matrix), sums_of_squares(matrix)], axis=1)

    @override
    def learn(self, facts: Facts) -> tuple[Standardise]:
        rows, width = int(facts.sums[0, 0]), facts.sums.shape[1] // 2
        mean, scale = np.zeros(width), np.zeros(width)
        for place in range(width):
            total, squares = exact(facts.sums, 1 + place), exact(facts.sums, 1 + width + place)
            mean[place] = total / rows
            variance = float((squares - total * total / rows) / max(rows - 1, 1))
            scale[place] = 1 / math.sqrt(variance) if variance > 0 else 0.0 * variance  # 0, or NaN for NaN
        return (Standardise(self.input, self.output, mean, scale, width),)


class Normalize(UnfittedStage):
    """``Normalizer``: divides a vector by its Euclidean length; a vector of zeros stays."""

    @classmethod
    @override
    def read(cls, saved: SavedStage) -> Self:
        saved.require(p=2.0)
        return super().read(saved)

    @override
    def transform(self, columns: dict[str, Column]) -> dict[str, Column]:
        vectors = vectors_of(columns, self.input)
        # Squares are added up one by one, as in Spark: NumPy's pairwise sum would differ in the last bit.
        if isinstance(vectors, SparseVectors):
            rows, count = vectors.rows, len(vectors.offsets) - 1
            with np.errstate(over="ignore"):
                lengths = np.sqrt(np.bincount(rows, weights=vectors.values**2, minlength=count))
            lengths[lengths == 0] = 1
            return {self.output: vectors._replace(values=vectors.values / lengths[rows])}
        squares = np.zeros(len(vectors))
        with np.errstate(over="ignore"):
            for place in range(vectors.shape[1]):
                squares += vectors[:, place] ** 2
        lengths = np.sqrt(squares)
        lengths[lengths == 0] = 1
        return {self.output: vectors / lengths[:, None]}
