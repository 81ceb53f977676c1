"""Stages that split texts into lists of words, as Java does."""

import re
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from sparkdl.errors import DataError
from sparkdl.preprocessing.saved import SavedStage
from sparkdl.preprocessing.stage import FittedStage, UnfittedStage
from sparkdl.preprocessing.values import Column, find, offsets_of

__all__ = ["CutAtPattern", "CutAtSpaces", "Neighbours", "constant_words", "joined_words", "texts_of", "words_of"]

_SPACES = r"[ \t\n\x0B\f\r]"
"""Java's ``\\s``."""
_WORD = (
    r"\p{L}\p{Nl}\p{M}\p{Nd}\p{Pc}\x{200C}\x{200D}"
    # Alphabetic characters that are neither letters nor marks, from Other_Alphabetic in Unicode's PropList.
    r"\x{24B6}-\x{24E9}\x{1F130}-\x{1F149}\x{1F150}-\x{1F169}\x{1F170}-\x{1F189}"
)
"""Java's ``\\w`` with ``(?U)``: alphabetic, marks, digits, connectors and join controls (UTS 18, annex C)."""
_OF_ALL_ALPHABETS, _OF_ASCII = r"(?U)\W+", r"\W+"
_PATTERNS = {_OF_ALL_ALPHABETS: rf"[^{_WORD}]+", r"\s+": rf"{_SPACES}+", _OF_ASCII: "[^0-9A-Za-z_]+"}
"""The equivalents of Java's patterns for RE2, with which Arrow splits texts."""


@dataclass(frozen=True)
class CutAtPattern(FittedStage):
    """``RegexTokenizer`` with one of the patterns that are known here, such as that of sparkdl's own text stages."""

    input: str
    output: str
    pattern: str
    """The pattern for RE2."""
    lower: bool

    @classmethod
    def of_words(cls, input: str, output: str) -> Self:
        """Lower-case words, split at all characters but letters, digits and underscores of any alphabet."""
        return cls(input, output, _PATTERNS[r"(?U)\W+"], lower=True)

    @classmethod
    @override
    def read(cls, saved: SavedStage) -> Self:
        saved.require(gaps=True, minTokenLength=1)
        pattern = saved.parameter("pattern", str)
        if pattern not in _PATTERNS:
            raise saved.only_spark(f" with the pattern {pattern!r}")
        return cls(saved.input, saved.output, _PATTERNS[pattern], saved.parameter("toLowercase", bool))

    @override
    def transform(self, columns: dict[str, Column]) -> dict[str, Column]:
        texts = texts_of(columns, self.input)
        if self.lower:
            texts = pa.array([text.lower() for text in texts.to_pylist()], pa.string())
        cut = pc.split_pattern_regex(texts, _pattern_for(texts, self.pattern))
        words = cut.flatten()
        there = np.asarray(pc.greater(pc.binary_length(words), 0)).astype(bool)
        kept = offsets_of(there)[offsets_of(np.asarray(cut.value_lengths()))]
        return {self.output: _lists(kept, words.filter(pa.array(there)))}

    @property
    @override
    def needs(self) -> dict[str, int | None]:
        return {self.input: None}


def _pattern_for(texts: pa.Array, pattern: str) -> str:
    """A simpler pattern if it splits these texts alike: RE2 takes 2 ms to compile the one for all alphabets."""
    if pattern == _PATTERNS[_OF_ALL_ALPHABETS] and pc.all(pc.string_is_ascii(texts)).as_py() is not False:
        return _PATTERNS[_OF_ASCII]
    return pattern


class CutAtSpaces(UnfittedStage):
    """``Tokenizer``: splits at single spaces, so that words may be empty."""

    @override
    def transform(self, columns: dict[str, Column]) -> dict[str, Column]:
        words = [_cut(text.lower()) for text in texts_of(columns, self.input).to_pylist()]
        return {self.output: pa.array(words, pa.list_(pa.string()))}

    @property
    @override
    def needs(self) -> dict[str, int | None]:
        return {self.input: None}


def _cut(text: str) -> list[str]:
    words = re.split(_SPACES, text)
    if len(words) == 1:
        return words
    while words and not words[-1]:  # Java drops empty words at the end
        words.pop()
    return words


@dataclass(frozen=True)
class Neighbours(FittedStage):
    """``NGram``: all sequences of n consecutive words, joined by spaces."""

    input: str
    output: str
    n: int

    @classmethod
    @override
    def read(cls, saved: SavedStage) -> Self:
        return cls(saved.input, saved.output, saved.parameter("n", int))

    @override
    def transform(self, columns: dict[str, Column]) -> dict[str, Column]:
        lists = words_of(columns, self.input)
        words, lengths = lists.flatten(), np.asarray(lists.value_lengths()).astype(np.int64)
        counts = np.maximum(lengths - self.n + 1, 0)
        offsets = offsets_of(counts)
        starts = np.arange(offsets[-1]) + np.repeat(offsets_of(lengths)[:-1] - offsets[:-1], counts)
        parts = [words.take(pa.array(starts + place)) for place in range(self.n)]
        return {self.output: _lists(offsets, pc.binary_join_element_wise(*parts, " "))}


def words_of(columns: dict[str, Column], name: str) -> pa.Array:
    """A column of lists of words. Raises :class:`DataError` for other types."""
    column = find(columns, name)
    if not isinstance(column, pa.Array) or not pa.types.is_list(column.type) or column.type.value_type != pa.string():
        raise DataError(f"the column {name!r} holds no lists of words")
    if column.null_count or column.flatten().null_count:
        raise DataError(f"the column {name!r} has rows without words")
    return column


def constant_words(word: str, rows: int) -> pa.Array:
    """One word in each row."""
    return _lists(np.arange(rows + 1), pa.array([word] * rows, pa.string()))


def joined_words(first: pa.Array, second: pa.Array) -> pa.Array:
    """The words of both columns, concatenated row by row."""
    lengths = [np.asarray(each.value_lengths()).astype(np.int64) for each in (first, second)]
    words = pa.concat_arrays([first.flatten(), second.flatten()])
    rows = np.concatenate([np.repeat(np.arange(len(each)), each) for each in lengths])
    return _lists(offsets_of(lengths[0] + lengths[1]), words.take(pa.array(np.argsort(rows, kind="stable"))))


def texts_of(columns: dict[str, Column], name: str) -> pa.Array:
    """A column of texts. Raises :class:`DataError` for other types, and for rows without a text."""
    column = find(columns, name)
    if not isinstance(column, pa.Array) or column.type != pa.string():
        raise DataError(f"the column {name!r} holds no texts")
    if column.null_count:
        raise DataError(f"the column {name!r} is null in {column.null_count:,} rows; fill or drop them")
    return column


def _lists(offsets: np.ndarray, words: pa.Array) -> pa.Array:  # type: ignore[type-arg]
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), words)
