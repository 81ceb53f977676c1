"""The stage for SQL statements of sparkdl's pipelines: copies or casts a column, or concatenates lists of words."""

from dataclasses import dataclass
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from sparkdl.errors import DataError
from sparkdl.preprocessing.saved import CAST, COPY, JOIN, SavedStage
from sparkdl.preprocessing.stage import FittedStage
from sparkdl.preprocessing.values import Column, find
from sparkdl.preprocessing.words import constant_words, joined_words, words_of

__all__ = ["Copy"]


@dataclass(frozen=True)
class Copy(FittedStage):
    """``SQLTransformer`` with a statement of sparkdl's: copies or casts a column, or concatenates lists of words."""

    inputs: tuple[str, ...]
    output: str
    first: str | None = None
    """A word that is put before the words of each row."""
    cast: str | None = None
    """The type that a column is cast to; ``bigint`` for a time in microseconds."""

    @classmethod
    @override
    def read(cls, saved: SavedStage) -> Self:
        statement = saved.parameter("statement", str)
        if copied := COPY.fullmatch(statement):
            source, output = _unquoted(copied[1]), _unquoted(copied[2]) if copied[2] else copied[3]
            saved.renamed[output] = saved.original(source)
            return cls((saved.original(source),), output)
        if cast := CAST.fullmatch(statement):
            source, output = _unquoted(cast[1] or cast[3]), _unquoted(cast[4]) if cast[4] else cast[5]
            return cls((saved.original(source),), output, cast=cast[2] or "bigint")
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
        if self.cast is not None:
            return {self.output: _cast(find(columns, self.inputs[0]), self.inputs[0], self.cast)}
        if len(self.inputs) == 1:
            return {self.output: find(columns, self.inputs[0])}
        return {self.output: joined_words(*[words_of(columns, name) for name in self.inputs])}


def _cast(column: Column, name: str, kind: str) -> pa.Array:
    """Truth values, dates or times, cast as in Spark."""
    if not isinstance(column, pa.Array) or not (pa.types.is_boolean(column.type) or pa.types.is_temporal(column.type)):
        raise DataError(f"the column {name!r} holds no truth values, dates or times, which `{kind}` is made of")
    if kind == "double":
        return column.cast(pa.int8()).cast(pa.float64())
    if kind == "bigint":
        return column.cast(pa.int64())
    texts = column.cast(pa.string())
    if pa.types.is_timestamp(column.type):  # Arrow writes six digits of a fraction, Spark leaves out zeros at its end
        texts = pc.replace_substring_regex(texts, r"\.?0+$", "")
    return texts


def _unquoted(name: str) -> str:
    return name.replace("``", "`")
