"""A stage that turns a text into the sequence of its words' hashes."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from typing_extensions import override

from sparkdl.preprocessing.hashes import xxhash64
from sparkdl.preprocessing.saved import SavedStage
from sparkdl.preprocessing.stage import FittedStage
from sparkdl.preprocessing.values import Column
from sparkdl.preprocessing.words import words_of

__all__ = ["HashWords"]


@dataclass(frozen=True)
class HashWords(FittedStage):
    """``sparkdl.data.text.WordHashes``: the first words of a text as hashes from 1 upwards, padded with zeros."""

    input: str
    output: str
    largest: int
    length: int

    @classmethod
    @override
    def read(cls, saved: SavedStage) -> Self:
        largest, length = saved.parameter("numFeatures", int), saved.parameter("length", int)
        if largest < 1 or length < 1:
            raise saved.damaged(f"it keeps {length} words as numbers up to {largest}")
        return cls(saved.input, saved.output, largest, length)

    @override
    def transform(self, columns: dict[str, Column]) -> dict[str, Column]:
        lists = words_of(columns, self.input)
        lengths = np.asarray(lists.value_lengths()).astype(np.int64)
        rows = np.repeat(np.arange(len(lists)), lengths)
        places = np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        kept = places < self.length
        distinct = lists.flatten().dictionary_encode()
        hashes = np.mod(xxhash64(distinct.dictionary), self.largest) + 1
        found = np.zeros((len(lists), self.length))
        found[rows[kept], places[kept]] = hashes[np.asarray(distinct.indices)[kept]]
        return {self.output: found}
