"""Checks that rows have the columns that a model reads, and none that it would add. Runs on the driver."""

from collections.abc import Collection

from pyspark.sql import DataFrame
from pyspark.sql.types import DataType, NumericType

from sparkdl.data.model_card import ModelCard
from sparkdl.data.raw_columns import find_column, listed, same_name, with_neighbours
from sparkdl.errors import DataError

__all__ = ["check_columns", "check_room"]


def check_columns(df: DataFrame, card: ModelCard, key: str | None) -> None:
    """Raise :class:`DataError` if a column of the model, or ``key``, is missing, ambiguous or of another type."""
    schema = df.schema
    found = {name: find_column(schema, name) for name in card.raw_columns}
    if missing := [name for name, column in found.items() if column is None]:
        raise DataError(
            f"the model reads {_describe(card)}; missing {with_neighbours(missing, schema)} among {listed(df.columns)}"
        )
    if key is not None and key not in df.columns:
        name = with_neighbours([key], schema)
        raise DataError(f"there is no column {name} (`key`); the rows have {listed(df.columns)}")
    if key is not None and df.columns.count(key) > 1:
        raise DataError(f"there are several columns {key!r} (`key`); rename or drop all but one of them")
    for name, expected in card.raw_columns.items():
        column = found[name]
        if column and not _fits(column.kind, expected):
            raise DataError(
                f"column {name!r} is {column.kind.simpleString()}, but the model was trained on {expected}; it reads"
                f" {_describe(card)}"
            )


def check_room(df: DataFrame, added: Collection[str]) -> None:
    """Raise :class:`DataError` if the rows already have a column that scoring would add."""
    same = same_name(df.sparkSession)
    names = {same(name) for name in added}
    taken = [name for name in df.columns if same(name) in names]
    if taken:
        raise DataError(f"the rows already have a column {taken[0]!r}, which scoring adds; rename or drop it first")


def _describe(card: ModelCard) -> str:
    """The raw columns with their types, and with the input's shape if the input is itself a raw column."""
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
