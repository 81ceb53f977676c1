"""Assigns the rows of a split to ranks, by a pure function, so that all ranks agree without communication."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Deal", "EvenCut", "Phase", "Segment", "Stretch", "rank_sizes", "rows_after", "share", "without_first"]


class Segment(NamedTuple):
    """Rows ``start`` to ``stop`` of one row group."""

    group: int
    start: int
    stop: int

    @property
    def rows(self) -> int:
        """The number of rows in the segment."""
        return self.stop - self.start


class Phase(NamedTuple):
    """A finished part of an epoch, in which each of ``size`` ranks has taken this number of batches."""

    size: int
    batch_size: int
    batches: int


class Stretch(NamedTuple):
    """Rows ``start`` to ``stop`` of the shuffled rows of one shard."""

    shard: int
    start: int
    stop: int


def rank_sizes(rows: int, size: int) -> tuple[int, int]:
    """The rows of the largest and of the smallest shard; they differ by at most one."""
    return -(-rows // size), rows // size


class Deal:
    """Row groups assigned to ``size`` ranks so that every row is in one shard, and shards differ by at most one row.

    ``sizes`` are the rows of each row group, which differ by at most one; ``order`` is the order of an epoch. Whole row
    groups are assigned round-robin as long as every rank can get one; each of the rest is cut into one piece per rank.
    Shards are computed on request, which takes a tenth of a second for a million row groups.
    """

    def __init__(self, sizes: NDArray[np.int64], order: NDArray[np.int64], size: int) -> None:
        num_whole = len(order) - len(order) % size
        self._size, self._order, self._rows = size, order, sizes[order]
        # Larger groups first: round-robin then gives all ranks equally many of them, up to one.
        self._whole = np.argsort(-self._rows[:num_whole], kind="stable")
        dealt = self._rows[self._whole].reshape(-1, size).sum(axis=0)
        base, extra = divmod(int(sizes.sum()), size)
        self.rows = np.full(size, base, np.int64)
        """Of each shard."""
        # Ranks that already have one more row get the larger target first, so that no piece has a negative size.
        self.rows[np.argsort(-dealt, kind="stable")[:extra]] += 1
        self._piece_ends = np.cumsum(self.rows - dealt)
        self._rest = np.arange(num_whole, len(order))
        self._rest_ends = np.cumsum(self._rows[num_whole:])

    def shard(self, rank: int) -> NDArray[np.int64]:
        """The segments of a rank, of shape (n, 3): group, start and stop."""
        whole = np.sort(self._whole[rank :: self._size])
        segments = np.stack([self._order[whole], np.zeros_like(whole), self._rows[whole]], axis=1)
        begin, end = int(self._piece_ends[rank - 1]) if rank else 0, int(self._piece_ends[rank])
        rest = self._rest
        return np.concatenate([segments, _between(begin, end, self._order[rest], self._rows[rest], self._rest_ends)])


class EvenCut:
    """Row groups of any sizes, concatenated in the order of an epoch and cut into ``size`` equal shards.

    Every row is in one shard, and shards differ by at most one row. A rank shares at most two of its row groups with
    other ranks. Arguments and attributes are those of :class:`Deal`.
    """

    def __init__(self, sizes: NDArray[np.int64], order: NDArray[np.int64], size: int) -> None:
        self._order, self._rows = order, sizes[order]
        self._ends = np.cumsum(self._rows)
        base, extra = divmod(int(sizes.sum()), size)
        self.rows = np.full(size, base, np.int64)
        """Of each shard."""
        self.rows[:extra] += 1
        self._shard_ends = np.cumsum(self.rows)

    def shard(self, rank: int) -> NDArray[np.int64]:
        """The segments of a rank, of shape (n, 3): group, start and stop."""
        end = int(self._shard_ends[rank])
        return _between(end - int(self.rows[rank]), end, self._order, self._rows, self._ends)


def _between(
    begin: int, end: int, groups: NDArray[np.int64], rows: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The segments of the rows from ``begin`` to ``end`` of concatenated row groups."""
    if begin == end:
        return np.zeros((0, 3), np.int64)
    some = slice(np.searchsorted(ends, begin, "right"), np.searchsorted(ends, end, "left") + 1)
    starts = ends[some] - rows[some]
    piece = [groups[some], np.maximum(begin, starts) - starts, np.minimum(end, ends[some]) - starts]
    return np.stack(piece, axis=1)


def rows_after(rows: int, phases: Sequence[Phase]) -> int:
    """How many of ``rows`` are left after these phases."""
    for phase in phases:
        larger, smaller = rank_sizes(rows, phase.size)
        num_larger = rows - smaller * phase.size
        taken = phase.batches * phase.batch_size
        rows = max(larger - taken, 0) * num_larger + max(smaller - taken, 0) * (phase.size - num_larger)
    return rows


def share(shard_rows: Sequence[int], phases: Sequence[Phase], size: int) -> list[list[Stretch]]:
    """What each of ``size`` ranks reads in the rest of an epoch, after phases with other numbers of ranks.

    ``shard_rows`` are the rows of the shards with which the epoch began, one per rank of its first phase. The remaining
    rows are concatenated and cut into pieces that differ by at most one row, so that every row is still used once.
    """
    stretches = [[Stretch(shard, 0, rows)] for shard, rows in enumerate(shard_rows)]
    sizes = [*(phase.size for phase in phases), size]
    for phase, following in zip(phases, sizes[1:], strict=True):
        left = [part for own in stretches for part in without_first(own, phase.batches * phase.batch_size)]
        stretches = _even(left, following)
    return stretches


def without_first(stretches: Sequence[Stretch], rows: int) -> list[Stretch]:
    """The stretches without their first rows."""
    left = []
    for shard, start, stop in stretches:
        begin = min(start + rows, stop)
        rows -= begin - start
        if begin < stop:
            left.append(Stretch(shard, begin, stop))
    return left


def _even(stretches: Sequence[Stretch], size: int) -> list[list[Stretch]]:
    base, extra = divmod(sum(stop - start for _, start, stop in stretches), size)
    pieces, rest = [], list(stretches)
    for rank in range(size):
        wanted, own = base + (rank < extra), []
        while wanted:
            shard, start, stop = rest[0]
            cut = min(start + wanted, stop)
            own.append(Stretch(shard, start, cut))
            wanted -= cut - start
            rest[:1] = [Stretch(shard, cut, stop)] if cut < stop else []
        pieces.append(own)
    return pieces
