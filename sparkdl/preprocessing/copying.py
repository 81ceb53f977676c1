"""Columns under another name, and lists of words behind one another: the SQL that sparkdl's own pipelines have."""

from dataclasses import dataclass
from typing import Self

from typing_extensions import override

from sparkdl.preprocessing.saved import COPY, JOIN, SavedStage
from sparkdl.preprocessing.stage import FittedStage
from sparkdl.preprocessing.values import Column, find
from sparkdl.preprocessing.words import constant_words, joined_words, words_of

__all__ = ["Copy"]


@dataclass(frozen=True)
class Copy(FittedStage):
    """``SQLTransformer`` with a statement of ours: a column, or what lists of words give behind one another."""

    inputs: tuple[str, ...]
    output: str
    first: str | None = None
    """A word before those of all rows."""

    @classmethod
    @override
    def read(cls, saved: SavedStage) -> Self:
        statement = saved.parameter("statement", str)
        if copied := COPY.fullmatch(statement):
            source, output = _unquoted(copied[1]), _unquoted(copied[2]) if copied[2] else copied[3]
            saved.renamed[output] = saved.original(source)
            return cls((saved.original(source),), output)
        joined = JOIN.fullmatch(statement)
        if not joined:
            raise saved.only_spark(f" with the statement {statement!r}")
        output = _unquoted(joined[3]) if joined[3] else joined[4]
        if joined[1].startswith("array("):
            return cls((joined[2],), output, "^")
        return cls((joined[1], joined[2]), output)

    @override
    def transform(self, columns: dict[str, Column]) -> dict[str, Column]:
        if self.first is not None:
            words = words_of(columns, self.inputs[0])
            return {self.output: joined_words(constant_words(self.first, len(words)), words)}
        if len(self.inputs) == 1:
            return {self.output: find(columns, self.inputs[0])}
        return {self.output: joined_words(*[words_of(columns, name) for name in self.inputs])}


def _unquoted(name: str) -> str:
    return name.replace("``", "`")
