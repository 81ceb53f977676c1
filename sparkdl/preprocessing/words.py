"""Texts become lists of words, as Java cuts them."""

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
    # What is alphabetic but no letter: Other_Alphabetic of Unicode's PropList that is no mark.
    r"\x{24B6}-\x{24E9}\x{1F130}-\x{1F149}\x{1F150}-\x{1F169}\x{1F170}-\x{1F189}"
)
"""Java's ``\\w`` with ``(?U)``: alphabetic, marks, digits, connectors and join controls (UTS 18, annex C)."""
_OF_ALL_ALPHABETS, _OF_ASCII = r"(?U)\W+", r"\W+"
_PATTERNS = {_OF_ALL_ALPHABETS: rf"[^{_WORD}]+", r"\s+": rf"{_SPACES}+", _OF_ASCII: "[^0-9A-Za-z_]+"}
"""Patterns of Java by what they are for RE2, which Arrow cuts with."""


@dataclass(frozen=True)
class CutAtPattern(FittedStage):
    """``RegexTokenizer`` with a pattern that is known here, most of all the one of sparkdl's own text stages."""

    input: str
    output: str
    pattern: str
    """For RE2."""
    lower: bool

    @classmethod
    def of_words(cls, input: str, output: str) -> Self:
        """In lower case, cut at anything but letters, digits and underscores, of any alphabet."""
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
    """One that cuts these texts alike and that RE2 reads in microseconds: one of all alphabets takes it 2 ms."""
    if pattern == _PATTERNS[_OF_ALL_ALPHABETS] and pc.all(pc.string_is_ascii(texts)).as_py() is not False:
        return _PATTERNS[_OF_ASCII]
    return pattern


class CutAtSpaces(UnfittedStage):
    """``Tokenizer``: what stands between single spaces, which may be nothing."""

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
    while words and not words[-1]:  # Java drops what is empty at the end
        words.pop()
    return words


@dataclass(frozen=True)
class Neighbours(FittedStage):
    """``NGram``: each n words that follow one another, with spaces between them."""

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
    """A column of lists of words. Raises :class:`DataError` for another one."""
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
    """Each row's words of one column, and behind them those of the other."""
    lengths = [np.asarray(each.value_lengths()).astype(np.int64) for each in (first, second)]
    words = pa.concat_arrays([first.flatten(), second.flatten()])
    rows = np.concatenate([np.repeat(np.arange(len(each)), each) for each in lengths])
    return _lists(offsets_of(lengths[0] + lengths[1]), words.take(pa.array(np.argsort(rows, kind="stable"))))


def texts_of(columns: dict[str, Column], name: str) -> pa.Array:
    """A column of texts. Raises :class:`DataError` for another one, and for rows without a text."""
    column = find(columns, name)
    if not isinstance(column, pa.Array) or column.type != pa.string():
        raise DataError(f"the column {name!r} holds no texts")
    if column.null_count:
        raise DataError(f"the column {name!r} is null in {column.null_count:,} rows; fill or drop them")
    return column


def _lists(offsets: np.ndarray, words: pa.Array) -> pa.Array:  # type: ignore[type-arg]
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), words)
