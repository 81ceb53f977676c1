"""Stages that turn words into weighted counts, and their learners."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from typing_extensions import override

from sparkdl.errors import DataError
from sparkdl.preprocessing.hashes import murmur3
from sparkdl.preprocessing.learner import Facts, Learner, Wanted, most_frequent_first
from sparkdl.preprocessing.saved import SavedStage
from sparkdl.preprocessing.scaling import vectors_of
from sparkdl.preprocessing.stage import FittedStage, UnfittedStage
from sparkdl.preprocessing.sums import ExactSums
from sparkdl.preprocessing.values import Column, FittedFloats, FittedTexts, SparseVectors, offsets_of
from sparkdl.preprocessing.words import words_of

__all__ = ["CountHashes", "CountWords", "LearnWeights", "LearnWords", "LogarithmOfCounts", "WeighWords"]


@dataclass(frozen=True)
class CountHashes(FittedStage):
    """``HashingTF``: the frequencies of words, by hash (Weinberger et al., 2009, arXiv 0902.2206)."""

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
    """``CountVectorizerModel``: the frequencies of the words of a vocabulary."""

    input: str
    output: str
    vocabulary: FittedTexts
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
    """The frequency of each index in each row; indices below zero are left out."""
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
    """``IDFModel``: multiplies each element by its weight."""

    input: str
    output: str
    weights: FittedFloats

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


@dataclass(frozen=True)
class LearnWeights(Learner):
    """Learns the weight of each element: ln((N + 1) / (n + 1)), where n of the N training rows have a nonzero count."""

    counts: str
    weighted: str
    """The column that is weighted: the counts, or their logarithms."""
    output: str
    minimum_documents: int
    """Elements that are nonzero in fewer training rows have the weight 0."""

    @property
    @override
    def reads(self) -> tuple[str, ...]:
        return (self.counts,)

    @override
    def sums(self, columns: dict[str, Column]) -> ExactSums:
        counts = vectors_of(columns, self.counts)
        if not isinstance(counts, SparseVectors):
            raise DataError(f"the column {self.counts!r} holds no counts")
        found = np.bincount(counts.indices[counts.values > 0], minlength=counts.width).astype(np.float64)
        return np.stack([np.append(found, len(counts.offsets) - 1), np.zeros(counts.width + 1)])

    @override
    def learn(self, facts: Facts) -> tuple[WeighWords]:
        *found, rows = facts.sums[0]
        return (WeighWords(self.weighted, self.output, _weights(np.array(found), rows, self.minimum_documents)),)


@dataclass(frozen=True)
class LearnWords(Learner):
    """Learns the vocabulary, which is the words of the most rows, and their weights as in :class:`LearnWeights`."""

    words: str
    counted: str
    """The column of counts."""
    dampened: str | None
    """The column of the counts' logarithms, if these are weighted."""
    output: str
    most: int
    minimum_documents: int
    named: str
    """The raw columns, which errors name."""

    @property
    @override
    def reads(self) -> tuple[str, ...]:
        return (self.words,)

    @property
    @override
    def wanted(self) -> Wanted:
        return Wanted(self.most, self.minimum_documents)

    @override
    def sums(self, columns: dict[str, Column]) -> ExactSums:
        return np.array([[float(len(words_of(columns, self.words)))], [0.0]])

    @override
    def texts(self, columns: dict[str, Column]) -> Sequence[pa.Array]:
        lists = words_of(columns, self.words)
        distinct = lists.flatten().dictionary_encode()
        rows = np.repeat(np.arange(len(lists)), np.asarray(lists.value_lengths()).astype(np.int64))
        cells = np.unique(rows * len(distinct.dictionary) + np.asarray(distinct.indices))
        return [distinct.dictionary.take(pa.array(cells % max(len(distinct.dictionary), 1)))]

    @override
    def learn(self, facts: Facts) -> tuple[FittedStage, ...]:
        counts = facts.counts.get(0, {})
        if not counts:
            raise DataError(
                f"no word is in {self.minimum_documents} training rows; lower `minimum_documents`, or look at the text"
                f" in {self.named}"
            )
        words = most_frequent_first(counts)
        weights = _weights(np.array([counts[word] for word in words], np.float64), facts.sums[0, 0], 0)
        count = CountWords(self.words, self.counted, pa.array(words, pa.string()), binary=False)
        if self.dampened is None:
            return count, WeighWords(self.counted, self.output, weights)
        dampen = LogarithmOfCounts(self.counted, self.dampened)
        return count, dampen, WeighWords(self.dampened, self.output, weights)


def _weights(documents: NDArray[np.float64], rows: float, least: int) -> NDArray[np.float64]:
    return np.where(documents >= least, np.log((rows + 1) / (documents + 1)), 0.0)
