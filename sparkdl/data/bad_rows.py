"""Handles rows that cannot be used: counts and names them, and then raises an error or skips them."""

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sparkdl.data.sql import identifier
from sparkdl.data.working_columns import WORKING
from sparkdl.errors import DataError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = [
    "COUNT",
    "NAMED",
    "PROBLEM",
    "PROBLEM_TYPE",
    "WRONG",
    "Problem",
    "describe_row",
    "named",
    "problem_text",
    "report",
    "take_good_lines",
    "what_is_wrong",
]

PROBLEM = f"{WORKING}problem"
"""The column in which a source reports what is wrong with a row, and in which file and line; null for good rows."""
PROBLEM_TYPE = {"kind": "string", "file": "string", "line": "bigint", "detail": "string"}
"""The fields of this column; rows that are whole files have no line."""
NAMED = f"{WORKING}named"
"""The working column with the values by which an error names a row."""
WRONG = f"{WORKING}wrong"
"""The working column with the number of a row's problem, from 1; 0 for good rows."""
COUNT = "\0"
"""The placeholder for the number of rows in a message. Names of columns, as Python writes them, cannot contain it."""
SHOWN_ROWS = 3
"""The most rows of each kind that are named; all are counted."""
_SHOWN_LINES = 5
_SHOWN_KINDS = 4
"""The most kinds of problems that an error lists."""
_SHOWN_VALUES = 4
"""The most values by which a row is named."""
_SHOWN_CHARACTERS = 60

_log = logging.getLogger(__name__)


class Problem(NamedTuple):
    """A problem that rows can have."""

    says: str
    """The problem in words, with :data:`COUNT` for the number of rows."""
    remedy: str
    """What to do about it."""
    test: "Column | None"
    """True or null for rows that have the problem. None if it is detected by other means."""


def named(rows: "DataFrame") -> "Column":
    """The values by which a row is named if its source reports no file and line: those of the first short columns."""
    from pyspark.sql import functions as sf
    from pyspark.sql.types import (
        ArrayType,
        BooleanType,
        DateType,
        NumericType,
        StringType,
        TimestampNTZType,
        TimestampType,
    )

    plain = BooleanType | DateType | NumericType | TimestampNTZType | TimestampType
    shown: list[Column] = []
    for name in [name for name in rows.columns if not name.startswith(WORKING)]:
        value, kind = sf.col(identifier(name)), rows.schema[name].dataType
        element = kind.elementType if isinstance(kind, ArrayType) else None
        if isinstance(element, plain | StringType):
            value, kind = value.cast("string"), StringType()
        if isinstance(kind, StringType):
            shown.append(sf.substring(value, 1, _SHOWN_CHARACTERS + 1).alias(name))
        elif isinstance(kind, plain):
            shown.append(value.alias(name))
    return sf.struct(*shown[:_SHOWN_VALUES]).alias(NAMED)


def describe_row(values: Mapping[str, Any]) -> str:
    """Names a row by some of its values, in one line: ``id = 3, name = 'a'``."""
    return ", ".join(f"{name} = {_short(value)}" for name, value in list(values.items())[:_SHOWN_VALUES])


def what_is_wrong(problems: Sequence[Problem]) -> "Column":
    """The number of the first problem that a row has, from 1, or 0. A test that is null counts as true.

    All problems must have tests.
    """
    from pyspark.sql import functions as sf

    if not problems:
        return sf.lit(0).cast("bigint").alias(WRONG)
    tests = [sf.coalesce(problem.test, sf.lit(True)) for problem in problems if problem.test is not None]
    # A thousand branches of one `when`, or conditions joined by |, would overflow Spark's stack.
    return sf.array_position(sf.array(*tests), True).alias(WRONG)


def report(rows: "DataFrame", problems: Sequence[Problem], counts: Mapping[int, int], *, skip: bool) -> None:
    """Report rows that cannot be used: the count of each kind and the first ones. Runs on the driver.

    ``rows`` have the columns :data:`WRONG` and :data:`NAMED`; ``counts`` is the number of rows for each value of
    :data:`WRONG`. Raises :class:`DataError`, or with ``skip`` logs the same as warnings.
    """
    kinds = sorted(kind for kind, count in counts.items() if kind and count)
    if not kinds:
        return
    places = _first_rows(rows, kinds if skip else kinds[:_SHOWN_KINDS])
    told = []
    for kind, shown in places.items():
        more = ", ..." if counts[kind] > len(shown) else ""
        told.append(
            f"{problems[kind - 1].says.replace(COUNT, f'{counts[kind]:,}')} (the first: {'; '.join(shown)}{more})"
        )
    if skip:
        for one in told:
            _log.warning("skipped: %s", one)
        return
    others = f". Besides: {'; '.join(told[1:])}" if told[1:] else ""
    more = f"; and {len(kinds) - len(told)} more kinds" if len(kinds) > len(told) else ""
    remedy = problems[kinds[0] - 1].remedy
    raise DataError(f"{told[0]}; {remedy}, or set `on_bad_rows: skip`{others}{more}")


def take_good_lines(rows: "DataFrame", *, skip: bool) -> "DataFrame":
    """The rows without those that their source could not read. Runs on the driver; Spark tasks count them.

    Raises :class:`DataError` with the count of each kind and the file and line of the first ones; with ``skip``, logs
    the same as a warning.
    """
    from pyspark.sql import functions as sf

    if PROBLEM not in rows.columns:
        return rows
    bad = rows.where(sf.col(PROBLEM).isNotNull()).select(f"{PROBLEM}.*")
    counts = bad.groupBy("kind").count().orderBy(sf.desc("count"), "kind").collect()
    if counts:
        first = bad.orderBy("file", "line").limit(_SHOWN_LINES).collect()
        total = sum(row["count"] for row in counts)
        kinds = "; ".join(f"{row['kind']}: {row['count']:,}" for row in counts)
        places = "; ".join(_place(row) for row in first)
        more = ", ..." if total > len(first) else ""
        what = "files" if first[0].line is None else "lines"
        message = f"{total:,} {what} cannot be used ({kinds}). The first: {places}{more}"
        if not skip:
            raise DataError(f"{message}. Repair or remove them, or set `on_bad_rows: skip`.")
        _log.warning("skipped: %s", message)
    return rows.where(sf.col(PROBLEM).isNull()).drop(PROBLEM)


def problem_text(problem: "Column") -> "Column":
    """The column :data:`PROBLEM` as a text for errors; null for good rows."""
    from pyspark.sql import functions as sf

    line = sf.coalesce(sf.concat(sf.lit(":"), problem["line"].cast("string")), sf.lit(""))
    detail = sf.coalesce(sf.concat(sf.lit(" ("), problem["detail"], sf.lit(")")), sf.lit(""))
    return sf.when(problem.isNotNull(), sf.concat(problem["file"], line, sf.lit(": "), problem["kind"], detail))


def _place(problem: Any) -> str:
    line = "" if problem.line is None else f":{problem.line}"
    return f"{problem.file}{line}: {problem.kind}{f' ({problem.detail})' if problem.detail else ''}"


def _first_rows(rows: "DataFrame", kinds: Collection[int]) -> dict[int, list[str]]:
    """For each problem, the first rows that have it, in the order of the values that name them."""
    from pyspark.sql import Window
    from pyspark.sql import functions as sf

    place = sf.row_number().over(Window.partitionBy(WRONG).orderBy(NAMED)).alias("place")
    wrong = rows.where(sf.col(WRONG).isin([*kinds])).select(WRONG, NAMED, place)
    shown: dict[int, list[str]] = {kind: [] for kind in kinds}
    for row in wrong.where(sf.col("place") <= SHOWN_ROWS).orderBy(WRONG, "place").collect():
        shown[row[WRONG]].append(describe_row(row[NAMED].asDict()))
    return shown


def _short(value: Any) -> str:
    text = "null" if value is None else repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
