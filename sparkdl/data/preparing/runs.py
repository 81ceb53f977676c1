"""Row groups are runs of the global order: which rows each holds, found from counts alone.

Rows are ordered by a hash. The hash's first bits are a bucket; how many rows each bucket has tells in which bucket a
row group begins, and after how many rows of it. So a task knows from a row's hash to which row group it belongs; a
bucket in which a group ends and the next one begins goes to both, and each keeps its part.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sparkdl.data.preparing.order import ORDER, SPLIT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["GroupRun", "Runs", "find_runs", "plan_runs"]

_BITS = 64
_BUCKETS_A_GROUP = 32
"""About one in so many rows lies in a bucket that goes to two groups."""
_ALONE_ROWS = 4096
"""A split this small is a single bucket: all of its rows go to all of its groups, which is faster than a count."""


class GroupRun(NamedTuple):
    """The rows of one row group."""

    split: str
    number: int
    """Of the row group among those of its split."""
    skipped: int
    """Rows of the first bucket that are in the group before this one."""
    rows: int
    sent: int
    """Rows of all its buckets: with those before and behind that are in other groups."""


class Runs(NamedTuple):
    """All row groups of a dataset, one split's behind another's. Small beside the rows: some numbers for each group."""

    all: tuple[GroupRun, ...]
    shift: int
    """How many bits of a hash are below its bucket."""
    firsts: dict[str, NDArray[np.int64]]
    """By split, the bucket that each group begins in."""
    lasts: dict[str, NDArray[np.int64]]
    """By split, the bucket that each group ends in."""

    def dealt(self, splits: pa.Array, order: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The places of rows among those given, some of them twice, and for each its row group in :attr:`all`."""
        buckets = order >> self.shift if self.shift < _BITS else np.zeros_like(order)
        rows: list[NDArray[np.int64]] = []
        groups: list[NDArray[np.int64]] = []
        begin = 0
        for split, firsts in self.firsts.items():
            own = np.flatnonzero(pc.equal(splits, split))
            first = np.searchsorted(self.lasts[split], buckets[own], "left")
            # A bucket that had no rows when they were counted belongs to the group behind it, which finds one too many.
            first = np.minimum(first, len(firsts) - 1)
            copies = np.maximum(np.searchsorted(firsts, buckets[own], "right") - first, 1)
            rows.append(np.repeat(own, copies))
            behind = np.arange(copies.sum()) - np.repeat(np.cumsum(copies) - copies, copies)
            groups.append(np.repeat(first, copies) + behind + begin)
            begin += len(firsts)
        return np.concatenate(rows), np.concatenate(groups)


def find_runs(rows: "DataFrame", split_rows: Mapping[str, int], num_groups: Mapping[str, int]) -> Runs:
    """The row groups, of equal size give or take one row. Runs on the driver; tasks count, where there are many rows.

    ``rows`` have their split and their order.
    """
    from pyspark.sql import functions as sf

    largest = max(split_rows.values())
    buckets = 1 if largest <= _ALONE_ROWS else _BUCKETS_A_GROUP * max(num_groups.values())
    shift = _BITS - max(buckets - 1, 0).bit_length()
    counts = {(split, 0): count for split, count in split_rows.items()}
    if shift < _BITS:
        bucket = sf.shiftright(ORDER, shift).alias("bucket")
        counts = {(row[0], row[1]): row[2] for row in rows.groupBy(SPLIT, bucket).count().collect()}
    return plan_runs(counts, num_groups, shift)


def plan_runs(counts: Mapping[tuple[str, int], int], num_groups: Mapping[str, int], shift: int) -> Runs:
    """The runs that these counts of rows by split and bucket make."""
    found: list[GroupRun] = []
    firsts, lasts = {}, {}
    for split, groups in num_groups.items():
        buckets = np.array(sorted(bucket for other, bucket in counts if other == split), np.int64)
        sizes = np.array([counts[split, bucket] for bucket in buckets.tolist()], np.int64)
        ends = np.cumsum(sizes)
        small, num_large = divmod(int(ends[-1]), groups)
        own = np.full(groups, small) + (np.arange(groups) < num_large)
        until = np.cumsum(own)
        first, last = np.searchsorted(ends, until - own, "right"), np.searchsorted(ends, until, "left")
        firsts[split], lasts[split] = buckets[first], buckets[last]
        skipped = until - own - (ends - sizes)[first]
        sent = ends[last] - (ends - sizes)[first]
        found += [GroupRun(split, *map(int, each)) for each in zip(np.arange(groups), skipped, own, sent, strict=True)]
    return Runs(tuple(found), shift, firsts, lasts)
