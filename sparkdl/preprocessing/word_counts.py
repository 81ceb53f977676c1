"""Words become weighted counts."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from typing_extensions import override

from sparkdl.preprocessing.hashes import murmur3
from sparkdl.preprocessing.saved import SavedStage
from sparkdl.preprocessing.scaling import vectors_of
from sparkdl.preprocessing.stage import FittedStage, UnfittedStage
from sparkdl.preprocessing.values import Column, SparseVectors, offsets_of
from sparkdl.preprocessing.words import words_of

__all__ = ["CountHashes", "CountWords", "LogarithmOfCounts", "WeighWords"]


@dataclass(frozen=True)
class CountHashes(FittedStage):
    """``HashingTF``: how often words are there, by their hashes (Weinberger et al., 2009, arXiv 0902.2206)."""

    input: str
    output: str
    width: int
    binary: bool
    """Only whether a word is there."""

    @classmethod
    @override
    def read(cls, saved: SavedStage) -> Self:
        width = saved.parameter("numFeatures", int)
        if not 0 < width < 2**31:
            raise saved.damaged(f"it hashes to {width} places")
        return cls(saved.input, saved.output, width, saved.parameter("binary", bool))

    @override
    def transform(self, columns: dict[str, Column]) -> dict[str, Column]:
        lists = words_of(columns, self.input)
        distinct = lists.flatten().dictionary_encode()
        places = np.mod(murmur3(distinct.dictionary).astype(np.int64), self.width)
        return {self.output: _counted(lists, places[np.asarray(distinct.indices)], self.width, self.binary)}


@dataclass(frozen=True)
class CountWords(FittedStage):
    """``CountVectorizerModel``: how often the words of a vocabulary are there."""

    input: str
    output: str
    vocabulary: pa.Array
    binary: bool
    """Only whether a word is there."""

    @classmethod
    @override
    def read(cls, saved: SavedStage) -> Self:
        saved.require(minTF=1.0)
        words = saved.fitted().get("vocabulary")
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise saved.damaged("its vocabulary is no list of words")
        return cls(saved.input, saved.output, pa.array(words, pa.string()), saved.parameter("binary", bool))

    @override
    def transform(self, columns: dict[str, Column]) -> dict[str, Column]:
        lists = words_of(columns, self.input)
        places = pc.fill_null(pc.index_in(lists.flatten(), value_set=self.vocabulary), -1)
        return {self.output: _counted(lists, np.asarray(places).astype(np.int64), len(self.vocabulary), self.binary)}


def _counted(lists: pa.Array, places: NDArray[np.int64], width: int, binary: bool) -> SparseVectors:
    """How often each place is there in each row; places below zero are left out."""
    rows = np.repeat(np.arange(len(lists)), np.asarray(lists.value_lengths()).astype(np.int64))
    kept = places >= 0
    cells, counts = np.unique(rows[kept] * width + places[kept], return_counts=True)
    values = np.ones(len(cells)) if binary else counts.astype(np.float64)
    lengths = np.bincount(cells // width, minlength=len(lists)) if width else np.zeros(len(lists), np.int64)
    return SparseVectors(width, offsets_of(lengths), cells % max(width, 1), values)


class LogarithmOfCounts(UnfittedStage):
    """``sparkdl.data.text.LogCounts``: each count n above one becomes 1 + ln n."""

    @override
    def transform(self, columns: dict[str, Column]) -> dict[str, Column]:
        counts = vectors_of(columns, self.input)
        if isinstance(counts, SparseVectors):
            return {self.output: counts._replace(values=_dampened(counts.values))}
        return {self.output: _dampened(counts)}


def _dampened(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(counts > 1, 1 + np.log(np.maximum(counts, 1)), counts)


@dataclass(frozen=True)
class WeighWords(FittedStage):
    """``IDFModel``: each place times its weight."""

    input: str
    output: str
    weights: NDArray[np.float64]

    @classmethod
    @override
    def read(cls, saved: SavedStage) -> Self:
        return cls(saved.input, saved.output, saved.vector(saved.fitted().get("idf")))

    @override
    def transform(self, columns: dict[str, Column]) -> dict[str, Column]:
        vectors = vectors_of(columns, self.input, len(self.weights))
        if isinstance(vectors, SparseVectors):
            return {self.output: vectors._replace(values=vectors.values * self.weights[vectors.indices])}
        return {self.output: vectors * self.weights}
