"""The hashes that rows are ordered by within their split, and how many row groups a split gets."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sparkdl.data.sql import identifier
from sparkdl.data.working_columns import WORKING
from sparkdl.settings import Prepare

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["CONTENT_HASH", "ORDER", "SPLIT", "hash_of", "num_groups"]

SPLIT = f"{WORKING}split"
CONTENT_HASH = f"{WORKING}content"
"""A hash of the row that does not depend on the seed; it also decides between rows whose order collides."""
ORDER = f"{WORKING}order"
"""A hash of the row, of its number among those that are equal to it, and of the seed: what rows are sorted by."""
_GROUP_BYTES = 1 << 28
"""About the most inputs that a row group holds: a task has a whole one in memory, a rank several."""


def num_groups(rows: int, row_bytes: int, settings: Prepare, *, each: float = 1.0) -> int:
    """How many row groups a split of so many rows gets: a multiple of the ranks, each of about the wanted size.

    ``each`` is how many rows one of them stands for, where they are groups that are ranked within.
    """
    rows_per_group = min(settings.rows_per_group, max(_GROUP_BYTES // row_bytes, 1))
    per_rank = max(round(rows * each / (rows_per_group * settings.num_ranks)), 1)
    return min(per_rank, rows // settings.num_ranks) * settings.num_ranks


def hash_of(content: Sequence[str], seed: int, salt: str) -> "Column":
    """A hash of some columns, which differs with the seed and with what it is for."""
    from pyspark.sql import functions as sf

    # xxhash64 passes over nulls, so each column's number goes in too: (null, 1) and (1, null) are different rows.
    numbered = [part for number, name in enumerate(content) for part in (sf.lit(number), sf.col(identifier(name)))]
    return sf.xxhash64(sf.lit(salt), sf.lit(seed), *numbered)
