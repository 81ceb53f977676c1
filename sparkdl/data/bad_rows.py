"""Rows that cannot be used: counted and named, then an error, or skipped where the settings say so."""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from sparkdl.data.working_columns import WORKING
from sparkdl.errors import DataError
from sparkdl.settings import Prepare

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["COUNT", "PROBLEM", "PROBLEM_TYPE", "skip_bad_rows", "take_good_lines"]

PROBLEM = f"{WORKING}problem"
"""The column of a source that knows the places of its rows: what is wrong with a row, or null."""
PROBLEM_TYPE = {"kind": "string", "file": "string", "line": "bigint", "detail": "string"}
COUNT = "{count}"
"""Stands in a message for how many rows it is about; the names of columns in it may have braces, too."""
_SHOWN_LINES = 5
"""Bad lines that are named; all are counted."""

_log = logging.getLogger(__name__)


def take_good_lines(rows: "DataFrame", settings: Prepare) -> "DataFrame":
    """The rows without those that their source could not read. Runs on the driver; tasks count.

    Raises :class:`DataError` with the count of each kind and the first lines, unless ``on_bad_rows`` is ``skip``: the
    same is then logged as a warning.
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
        places = "; ".join(
            f"{row.file}:{row.line}: {row.kind}{f' ({row.detail})' if row.detail else ''}" for row in first
        )
        more = ", ..." if total > len(first) else ""
        message = f"{total:,} lines cannot be used ({kinds}). The first: {places}{more}"
        if settings.on_bad_rows == "error":
            raise DataError(f"{message}. Repair them, or set `on_bad_rows: skip`.")
        _log.warning("skipped: %s", message)
    return rows.where(sf.col(PROBLEM).isNull()).drop(PROBLEM)


def skip_bad_rows(rows: "DataFrame", problems: "Mapping[str, Column]") -> "DataFrame":
    """The rows where no test is true (or null), and a warning that counts the others. Runs on the driver."""
    from pyspark.sql import functions as sf

    tests = [sf.coalesce(test, sf.lit(True)) for test in problems.values()]
    sums = [sf.sum(test.cast("bigint")).alias(str(index)) for index, test in enumerate(tests)]
    bad = sf.array_contains(sf.array(*tests), True)  # a thousand of them joined by | overflow Spark's stack
    counts = rows.where(bad).agg(*sums).first()
    for index, message in enumerate(problems):
        if counts is not None and counts[index]:
            _log.warning("skipped: %s", message.replace(COUNT, f"{counts[index]:,}"))
    return rows.where(~bad)
