"""Rows that cannot be used: counted and named, then an error, or skipped where the settings say so."""

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
"""The column of a source that knows the places of its rows: what is wrong with a row, or null."""
PROBLEM_TYPE = {"kind": "string", "file": "string", "line": "bigint", "detail": "string"}
"""Its fields; a row that is a whole file has no line."""
NAMED = f"{WORKING}named"
"""The working column that holds the values by which an error names a row."""
WRONG = f"{WORKING}wrong"
"""The working column that says which problem a row has, counted from 1, or 0."""
COUNT = "\0"
"""Stands in a message for how many rows it is about: no name of a column, as Python writes it, has this character."""
SHOWN_ROWS = 3
"""Rows of each kind that are named; all are counted."""
_SHOWN_LINES = 5
_SHOWN_KINDS = 4
"""Kinds of problems that an error lists."""
_SHOWN_VALUES = 4
"""Values that tell which row it is."""
_SHOWN_CHARACTERS = 60

_log = logging.getLogger(__name__)


class Problem(NamedTuple):
    """Something that can be wrong with a row."""

    says: str
    """What is wrong with so many (:data:`COUNT`) rows."""
    remedy: str
    """What to do about it."""
    test: "Column | None"
    """True for the rows where it is, or null. None where it is found by other means."""


def named(rows: "DataFrame") -> "Column":
    """The values by which a row is named where its source knows no better: of the first columns that are short."""
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
    """Which row it is, by some of its values: ``id = 3, name = 'a'``, in one line."""
    return ", ".join(f"{name} = {_short(value)}" for name, value in list(values.items())[:_SHOWN_VALUES])


def what_is_wrong(problems: Sequence[Problem]) -> "Column":
    """The number of the first problem that a row has, from 1, or 0. A test that is null counts as true.

    All of the problems have tests.
    """
    from pyspark.sql import functions as sf

    if not problems:
        return sf.lit(0).cast("bigint").alias(WRONG)
    tests = [sf.coalesce(problem.test, sf.lit(True)) for problem in problems if problem.test is not None]
    # A thousand of them as branches of one `when`, or joined by |, overflow Spark's stack.
    return sf.array_position(sf.array(*tests), True).alias(WRONG)


def report(rows: "DataFrame", problems: Sequence[Problem], counts: Mapping[int, int], *, skip: bool) -> None:
    """Tell of the rows that cannot be used, of each kind their count and the first ones. Runs on the driver.

    ``rows`` have :data:`WRONG` and :data:`NAMED`; ``counts`` are those of the first. Raises :class:`DataError`, or with
    ``skip`` logs the same as warnings.
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
    """The rows without those that their source could not read. Runs on the driver; tasks count.

    Raises :class:`DataError` with the count of each kind and the first ones by file and line; with ``skip``, the same
    is logged as a warning.
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
    """What the column :data:`PROBLEM` says, as an error names it; null where it says nothing."""
    from pyspark.sql import functions as sf

    line = sf.coalesce(sf.concat(sf.lit(":"), problem["line"].cast("string")), sf.lit(""))
    detail = sf.coalesce(sf.concat(sf.lit(" ("), problem["detail"], sf.lit(")")), sf.lit(""))
    return sf.when(problem.isNotNull(), sf.concat(problem["file"], line, sf.lit(": "), problem["kind"], detail))


def _place(problem: Any) -> str:
    line = "" if problem.line is None else f":{problem.line}"
    return f"{problem.file}{line}: {problem.kind}{f' ({problem.detail})' if problem.detail else ''}"


def _first_rows(rows: "DataFrame", kinds: Collection[int]) -> dict[int, list[str]]:
    """By the number of their problem, the first rows in the order of what is shown of them."""
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
