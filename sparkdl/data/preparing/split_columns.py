"""The columns that only the split is made from: times and groups."""

from datetime import datetime
from typing import TYPE_CHECKING

from sparkdl.data.bad_rows import COUNT, Problem
from sparkdl.data.sql import identifier
from sparkdl.errors import DataError
from sparkdl.settings import Prepare, TimeSplit

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

__all__ = ["split_by_time", "split_problems"]

_A_DATE_FIRST = r"^\s*\d{4}-\d{2}-\d{2}"
"""Spark takes an hour alone for one of today."""
_WITHOUT_SECONDS = r"^(\s*\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2})(?=Z|[+-])"
"""Spark knows an offset from UTC only behind seconds."""


def split_by_time(rows: "DataFrame", time: TimeSplit) -> "Column":
    """The split that a row is of by its time; ``train`` where it has none. Runs on the driver, lazily.

    Raises :class:`DataError` for a column that holds no times, or times of another kind than the settings.
    """
    from pyspark.sql import functions as sf

    kind, at = rows.schema[time.column].dataType, _times(rows, time)
    split = sf.when(at >= _literal(time.test_from, "test_from", time, kind), sf.lit("test"))
    if time.validation_from is not None:
        split = split.when(at >= _literal(time.validation_from, "validation_from", time, kind), sf.lit("validation"))
    return split.otherwise(sf.lit("train"))


def split_problems(rows: "DataFrame", settings: Prepare) -> list[Problem]:
    """What can be wrong with these columns."""
    from pyspark.sql import functions as sf
    from pyspark.sql.types import DoubleType, FloatType, StringType

    problems = []
    for name in settings.split.group:
        says = f"column {name!r} (split.group) is null in {COUNT} rows"
        problems.append(Problem(says, "say which group they are of, drop them", sf.col(identifier(name)).isNull()))
    if time := settings.split.time:
        at, kind = _times(rows, time), rows.schema[time.column].dataType
        missing = at.isNull() | sf.isnan(at) if isinstance(kind, FloatType | DoubleType) else at.isNull()
        what = "null or no time of ISO 8601" if isinstance(kind, StringType) else "null or NaN"
        says = f"column {time.column!r} (split.time) is {what} in {COUNT} rows"
        problems.append(Problem(says, "say when they were, drop them", missing))
    return problems


def _times(rows: "DataFrame", time: TimeSplit) -> "Column":
    """The column as what can be compared; null where a text is no time."""
    from pyspark.sql import functions as sf
    from pyspark.sql.types import StringType

    name = identifier(time.column)
    if not isinstance(rows.schema[time.column].dataType, StringType):
        return sf.col(name)
    time_of = f"try_cast(regexp_replace({name}, r'{_WITHOUT_SECONDS}', '$1:00') AS timestamp_ltz)"
    return sf.when(sf.col(name).rlike(_A_DATE_FIRST), sf.expr(time_of))


def _literal(value: str | float, key: str, time: TimeSplit, kind: "DataType") -> "Column":
    """A moment as the column's values are compared with it; Spark itself reads it, in the session's time zone."""
    from pyspark.sql import functions as sf
    from pyspark.sql.types import DateType, NumericType, StringType, TimestampNTZType, TimestampType

    where, numbers = f"column {time.column!r} (split.time) is {kind.simpleString()}", isinstance(kind, NumericType)
    if not numbers and not isinstance(kind, DateType | TimestampType | TimestampNTZType | StringType):
        raise DataError(f"{where}, which is no time: name a column of dates, timestamps, numbers or texts")
    if isinstance(value, str) == numbers:
        raise DataError(f"{where}: write `{key}`, which is {value!r}, as {'a number' if numbers else 'a date or time'}")
    if not isinstance(value, str):
        return sf.lit(value)
    moment = datetime.fromisoformat(value)
    if isinstance(kind, DateType):
        if moment != datetime(moment.year, moment.month, moment.day):
            raise DataError(f"{where}: write `{key}`, which is {value!r}, as a date without a time of day")
        return sf.lit(moment.date().isoformat()).cast("date")
    if isinstance(kind, TimestampNTZType):
        if moment.tzinfo:
            raise DataError(f"{where}, without a time zone: write `{key}`, which is {value!r}, without an offset")
        return sf.lit(moment.isoformat()).cast("timestamp_ntz")
    return sf.lit(moment.isoformat()).cast("timestamp_ltz")
