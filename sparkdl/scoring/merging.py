"""Merges predictions into a table by a key: rows with the same key are replaced, others added. Runs on the driver.

If the source is a table's changes (Delta's change data feed), predictions of deleted rows are deleted, too.
"""

import uuid
from collections.abc import Callable, Sequence

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - what Spark's own documentation calls it

from sparkdl.data.sql import identifier
from sparkdl.data.working_columns import WORKING
from sparkdl.errors import DataError

__all__ = ["merge", "present_rows", "score_changes"]

_CHANGE, _VERSION, _TIME = _OF_CHANGES = "_change_type", "_commit_version", "_commit_timestamp"
"""The columns that Delta's change data feed adds."""
_ADDED, _GONE = ("insert", "update_postimage"), ("delete", "update_preimage")
_PLACE, _IS_GONE = f"{WORKING}place", f"{WORKING}is_gone"


def score_changes(changes: DataFrame, score: Callable[[DataFrame], DataFrame], key: str | None) -> DataFrame:
    """Predictions for the changed rows of a table, lazily.

    Without a ``key``, every inserted row and the new version of every updated row is scored; the columns of the change
    data feed stay. With a ``key``, only the last version of each row is scored, without these columns; for each key
    that was deleted there is a row without a prediction, from which :func:`merge` learns to delete it. If the key of a
    row was changed, the old key counts as deleted. Raises :class:`DataError` if ``changes`` lacks columns of the feed.
    """
    if missing := {*_OF_CHANGES} - {*changes.columns}:
        raise DataError(
            f"the source is not a change data feed: it has no column {min(missing)}; remove the option `readChangeFeed`"
        )
    scored = score(changes.where(F.col(_CHANGE).isin(*_ADDED)))
    if key is None:
        return scored
    is_gone = F.col(_CHANGE).isin(*_GONE)
    # One commit may delete a row and insert it again.
    newest = Window.partitionBy(identifier(key)).orderBy(F.desc(_VERSION), is_gone)
    last = changes.withColumn(_PLACE, F.row_number().over(newest)).where(f"{_PLACE} = 1").drop(_PLACE)
    there = score(last.where(~is_gone).drop(*_OF_CHANGES)).withColumn(_IS_GONE, F.lit(False))
    gone = last.where(is_gone).select(identifier(key)).withColumn(_IS_GONE, F.lit(True))
    return there.unionByName(gone, allowMissingColumns=True)


def present_rows(scored: DataFrame) -> DataFrame:
    """The rows without those that stand for deleted keys."""
    return scored.where(f"NOT {_IS_GONE}").drop(_IS_GONE) if _IS_GONE in scored.columns else scored


def merge(scored: DataFrame, table: str, key: str) -> None:
    """Merge rows into a table in one commit. ``table`` is its name in SQL."""
    view = f"sparkdl_{uuid.uuid4().hex}"
    actions = "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    if _IS_GONE in scored.columns:
        actions = _actions([name for name in scored.columns if name != _IS_GONE])
    scored.createOrReplaceTempView(view)
    try:
        same = f"there.{identifier(key)} = new.{identifier(key)}"
        scored.sparkSession.sql(f"MERGE INTO {table} AS there USING {view} AS new ON {same} {actions}")
    finally:
        scored.sparkSession.catalog.dropTempView(view)


def _actions(columns: Sequence[str]) -> str:
    """The actions of a MERGE in which some rows stand for deleted keys; the column that marks them is not written."""
    names = [identifier(name) for name in columns]
    updated = ", ".join(f"there.{name} = new.{name}" for name in names)
    values = ", ".join(f"new.{name}" for name in names)
    return (
        f"WHEN MATCHED AND new.{_IS_GONE} THEN DELETE WHEN MATCHED THEN UPDATE SET {updated}"
        f" WHEN NOT MATCHED AND NOT new.{_IS_GONE} THEN INSERT ({', '.join(names)}) VALUES ({values})"
    )
