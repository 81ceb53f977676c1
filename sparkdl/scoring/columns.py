"""Whether rows have the columns that a model reads, and room for those that it adds. Runs on the driver."""

from collections import Counter
from collections.abc import Callable, Collection

from pyspark.sql import DataFrame
from pyspark.sql.types import DataType, NumericType

from sparkdl.errors import DataError
from sparkdl.scoring.model_card import ModelCard

__all__ = ["check_columns", "check_room"]


def check_columns(df: DataFrame, card: ModelCard, key: str | None) -> None:
    """Raise :class:`DataError` where the columns are not those that the model reads, or cannot be told apart."""
    same = _same(df)
    counts = Counter(map(same, df.columns))
    twins = [name for name in df.columns if counts[same(name)] > 1]
    if twins:
        raise DataError(
            f"the rows have columns of the same name: {', '.join(map(repr, twins))}; rename or drop all but one of them"
            " before scoring"
        )
    missing = [name for name in card.raw_columns if name not in df.columns]
    if missing:
        raise DataError(
            f"the model reads {_describe(card)}; missing {', '.join(map(repr, missing))} among {', '.join(df.columns)}"
        )
    if key is not None and key not in df.columns:
        raise DataError(f"no column {key!r} to name rows by (`key`); the rows have {', '.join(df.columns)}")
    for name, expected in card.raw_columns.items():
        found = df.schema[name].dataType
        if not _fits(found, expected):
            raise DataError(
                f"column {name!r} is {found.simpleString()}, but the model was trained on {expected}; it reads"
                f" {_describe(card)}"
            )


def check_room(df: DataFrame, added: Collection[str]) -> None:
    """Raise :class:`DataError` if the rows have a column already that is to be added."""
    same = _same(df)
    names = {same(name) for name in added}
    taken = [name for name in df.columns if same(name) in names]
    if taken:
        raise DataError(f"the rows have a column {taken[0]!r} already; rename or drop it before scoring")


def _same(df: DataFrame) -> Callable[[str], str]:
    """What is equal for two names that are one to the session of these rows."""
    case_sensitive = str(df.sparkSession.conf.get("spark.sql.caseSensitive")).lower() == "true"
    return str if case_sensitive else str.lower


def _describe(card: ModelCard) -> str:
    """The raw columns in words, with the input's shape where it is a raw column itself."""
    shape = "" if card.preprocessing else f" of shape {'x'.join(map(str, card.input.shape))} ({card.input.dtype})"
    return ", ".join(f"{name!r} ({type_}{shape})" for name, type_ in card.raw_columns.items())


def _fits(found: DataType, expected: str) -> bool:
    """Whether a column can be read as the type that the model was trained on: numbers as numbers, vectors as arrays."""
    name = found.simpleString()
    if name == expected:
        return True
    vectors = ("vector", "array<")
    if name.startswith(vectors) and expected.startswith(vectors):
        return True
    numbers = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal", "boolean")
    return isinstance(found, NumericType) and expected.startswith(numbers)
