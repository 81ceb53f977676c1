"""Where each row goes within its split: its place in a global order, and the row group that this lies in."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sparkdl.data.sql import identifier
from sparkdl.data.working_columns import WORKING
from sparkdl.errors import DataError
from sparkdl.settings import Prepare

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["CONTENT_HASH", "GROUP", "ORDER", "PLACE", "SPLIT", "hash_of", "num_groups", "with_groups"]

SPLIT, GROUP, PLACE = f"{WORKING}split", f"{WORKING}group", f"{WORKING}place"
CONTENT_HASH = f"{WORKING}content"
"""A hash of the row that does not depend on the seed; it also decides between rows whose order collides."""
ORDER = f"{WORKING}order"
"""A hash of the row, of its number among those that are equal to it, and of the seed: what rows are sorted by."""
_GROUP_BYTES = 1 << 28
"""About the most inputs that a row group holds: a task has a whole one in memory, a rank several."""
_BUCKET_ROWS = 4096
"""Rows that one window of the ordering sorts: small enough for memory, large enough to keep windows few."""
_MAX_BUCKETS = 1 << 16
"""The counts of all buckets are collected on the driver."""


def num_groups(rows: int, row_bytes: int, settings: Prepare, *, each: float = 1.0) -> int:
    """How many row groups a split of so many rows gets: a multiple of the ranks, each of about the wanted size.

    ``each`` is how many rows one of them stands for, where they are groups that are ranked within.
    """
    rows_per_group = min(settings.rows_per_group, max(_GROUP_BYTES // row_bytes, 1))
    per_rank = max(round(rows * each / (rows_per_group * settings.num_ranks)), 1)
    return min(per_rank, rows // settings.num_ranks) * settings.num_ranks


def with_groups(rows: "DataFrame", split_rows: Mapping[str, int], num_groups: Mapping[str, int]) -> "DataFrame":
    """Add each row's place in its split's order, and the row group it belongs to. Runs on the driver; counts in tasks.

    Groups are runs of the order, of equal size give or take one row. ``rows`` have no raw column any more.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as sf

    buckets = min(max(max(split_rows.values()) // _BUCKET_ROWS, 1), _MAX_BUCKETS)
    rows = rows.withColumn("_bucket", sf.pmod(ORDER, sf.lit(buckets)))
    counts = {(split, 0): count for split, count in split_rows.items()}
    if buckets > 1:  # counting is a job of its own, which a small dataset need not wait for
        counts = {(row[0], row[1]): row[2] for row in rows.groupBy(SPLIT, "_bucket").count().collect()}
    begins, next_begin = [], dict.fromkeys(split_rows, 0)
    for (split, bucket), count in sorted(counts.items()):
        small, num_large = divmod(split_rows[split], num_groups[split])
        begins.append((split, bucket, next_begin[split], small, num_large))
        next_begin[split] += count
    if next_begin != dict(split_rows):
        raise DataError(
            "the rows changed while they were read; prepare from a source that gives the same rows each time"
        )
    table = rows.sparkSession.createDataFrame(
        begins, f"{SPLIT} string, _bucket bigint, _begin bigint, _small bigint, _num_large bigint"
    )
    within = Window.partitionBy(SPLIT, "_bucket").orderBy(ORDER, CONTENT_HASH)
    place = sf.col("_begin") + sf.row_number().over(within) - 1
    in_large = sf.col("_num_large") * (sf.col("_small") + 1)
    group = (
        sf.when(sf.col(PLACE) < in_large, sf.expr(f"{PLACE} div (_small + 1)"))
        .otherwise(sf.col("_num_large") + sf.expr(f"({PLACE} - _num_large * (_small + 1)) div _small"))
        .cast("int")
    )
    placed = rows.join(sf.broadcast(table), [SPLIT, "_bucket"]).withColumn(PLACE, place)
    return placed.withColumn(GROUP, group).drop("_bucket", "_begin", "_small", "_num_large", ORDER, CONTENT_HASH)


def hash_of(content: Sequence[str], seed: int, salt: str) -> "Column":
    """A hash of some columns, which differs with the seed and with what it is for."""
    from pyspark.sql import functions as sf

    # xxhash64 passes over nulls, so each column's number goes in too: (null, 1) and (1, null) are different rows.
    numbered = [part for number, name in enumerate(content) for part in (sf.lit(number), sf.col(identifier(name)))]
    return sf.xxhash64(sf.lit(salt), sf.lit(seed), *numbered)
