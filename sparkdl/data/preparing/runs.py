"""Row groups are runs of the global order: which rows each holds, found from counts alone.

Rows are ordered by a hash. The hash's first bits are a bucket; how many rows each bucket has tells in which bucket a
row group begins, and after how many rows of it. So a task knows from a row's hash to which row group it belongs; a
bucket in which a group ends and the next one begins goes to both, and each keeps its part.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sparkdl.sessions import arrow_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["GroupRun", "Runs", "SplitRuns", "find_runs", "plan_runs"]

_BITS = 64
_BUCKETS_A_GROUP = 32
"""About one in so many rows lies in a bucket that goes to two groups."""
_MOST_BUCKETS = 1 << 22
"""However many groups there are: the driver gets a count of each bucket. With fewer, more rows go to several groups."""
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


class SplitRuns(NamedTuple):
    """The row groups of a split: a number of each, int64 of shape (groups,)."""

    firsts: NDArray[np.int64]
    """The bucket that each group begins in."""
    lasts: NDArray[np.int64]
    """The bucket that each group ends in."""
    skipped: NDArray[np.int64]
    rows: NDArray[np.int64]
    sent: NDArray[np.int64]


class Runs(NamedTuple):
    """All row groups of a dataset, one split's behind another's. Small beside the rows: 40 bytes for each group."""

    splits: dict[str, SplitRuns]
    shift: int
    """How many bits of a hash are below its bucket."""

    @property
    def num_groups(self) -> int:
        """Of all splits."""
        return sum(len(split.rows) for split in self.splits.values())

    @property
    def sent(self) -> int:
        """How many rows are sent to groups: those of buckets that lie in several groups count several times."""
        return sum(int(split.sent.sum()) for split in self.splits.values())

    def group(self, place: int) -> GroupRun:
        """The row group at a place among all of them."""
        number = place
        for name, split in self.splits.items():
            if number < len(split.rows):
                return GroupRun(name, number, *(int(each[number]) for each in (split.skipped, split.rows, split.sent)))
            number -= len(split.rows)
        raise IndexError(place)

    def dealt(self, splits: pa.Array, order: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The places of rows among those given, some of them twice, and for each its row group's place among all."""
        buckets = order >> self.shift if self.shift < _BITS else np.zeros_like(order)
        rows: list[NDArray[np.int64]] = []
        groups: list[NDArray[np.int64]] = []
        begin = 0
        for split, (firsts, lasts, *_) in self.splits.items():
            own = np.flatnonzero(pc.equal(splits, split))
            first = np.searchsorted(lasts, buckets[own], "left")
            # A bucket that had no rows when they were counted belongs to the group behind it, which finds one too many.
            first = np.minimum(first, len(firsts) - 1)
            copies = np.maximum(np.searchsorted(firsts, buckets[own], "right") - first, 1)
            rows.append(np.repeat(own, copies))
            behind = np.arange(copies.sum()) - np.repeat(np.cumsum(copies) - copies, copies)
            groups.append(np.repeat(first, copies) + behind + begin)
            begin += len(firsts)
        return np.concatenate(rows), np.concatenate(groups)


def find_runs(
    count_buckets: "Callable[[int], DataFrame]", split_rows: Mapping[str, int], num_groups: Mapping[str, int]
) -> Runs:
    """The row groups, of equal size give or take one row. Runs on the driver; tasks count, where there are many rows.

    ``count_buckets`` is that of :class:`~sparkdl.data.preparing.rows_to_write.RowsToWrite`.
    """
    largest = max(split_rows.values())
    buckets = 1 if largest <= _ALONE_ROWS else min(_BUCKETS_A_GROUP * max(num_groups.values()), _MOST_BUCKETS)
    shift = _BITS - max(buckets - 1, 0).bit_length()
    if shift == _BITS:
        alone = np.zeros(1, np.int64)
        counts = {split: (alone, np.array([count], np.int64)) for split, count in split_rows.items()}
    else:
        counts = _by_split(arrow_table(count_buckets(shift)))
    return plan_runs(counts, num_groups, shift)


def plan_runs(
    counts: Mapping[str, tuple[NDArray[np.int64], NDArray[np.int64]]], num_groups: Mapping[str, int], shift: int
) -> Runs:
    """The runs that these counts make: by split, the buckets in order, and how many rows each has."""
    splits = {}
    for split, groups in num_groups.items():
        buckets, sizes = counts[split]
        ends = np.cumsum(sizes)
        small, num_large = divmod(int(ends[-1]), groups)
        own = np.full(groups, small, np.int64)
        own[:num_large] += 1
        until = np.cumsum(own)
        first, last = np.searchsorted(ends, until - own, "right"), np.searchsorted(ends, until, "left")
        skipped = until - own - (ends - sizes)[first]
        sent = ends[last] - (ends - sizes)[first]
        splits[split] = SplitRuns(buckets[first], buckets[last], skipped, own, sent)
    return Runs(splits, shift)


def _by_split(counted: pa.Table) -> dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]]:
    found = {}
    for split in pc.unique(counted.column("split")).to_pylist():
        own = counted.filter(pc.equal(counted.column("split"), split))
        buckets, sizes = own.column("bucket").to_numpy(), own.column("count").to_numpy()
        order = np.argsort(buckets)
        found[split] = buckets[order], sizes[order]
    return found
