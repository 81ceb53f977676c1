"""Which rows of a split each rank reads: a pure function, so that all ranks agree without talking."""

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Segment", "deal", "rank_sizes"]


class Segment(NamedTuple):
    """Rows ``start`` to ``stop`` of one row group."""

    group: int
    start: int
    stop: int

    @property
    def rows(self) -> int:
        """How many rows the segment has."""
        return self.stop - self.start


def rank_sizes(rows: int, size: int) -> tuple[int, int]:
    """The rows of the largest and of the smallest shard; they differ by at most one."""
    return -(-rows // size), rows // size


def deal(sizes: Sequence[int], order: Sequence[int], size: int) -> list[list[Segment]]:
    """Deal row groups to ``size`` ranks so that every row is dealt once and shards differ by at most one row.

    ``sizes`` are the rows of each group, equal give or take one; ``order`` is the order of an epoch. Whole groups are
    dealt as long as every rank can get one; the groups that are left over are cut into one piece a rank.
    """
    num_whole = len(order) - len(order) % size
    position = {group: index for index, group in enumerate(order)}
    # Larger groups first: round-robin then gives every rank as many of them as any other, give or take one.
    whole = sorted(order[:num_whole], key=lambda group: -sizes[group])
    shards = [
        [Segment(group, 0, sizes[group]) for group in sorted(whole[rank::size], key=position.__getitem__)]
        for rank in range(size)
    ]
    dealt = [sum(segment.rows for segment in shard) for shard in shards]
    base, extra = divmod(sum(sizes), size)
    # Ranks that hold a row more already are the first to have the larger target, so that no piece is negative.
    by_load = sorted(range(size), key=lambda rank: -dealt[rank])
    target = {rank: base + (place < extra) for place, rank in enumerate(by_load)}
    rest = [Segment(group, 0, sizes[group]) for group in order[num_whole:]]
    for rank, shard in enumerate(shards):
        missing = target[rank] - dealt[rank]
        while missing:
            group, start, stop = rest[0]
            cut = min(start + missing, stop)
            shard.append(Segment(group, start, cut))
            missing -= cut - start
            rest[:1] = [Segment(group, cut, stop)] if cut < stop else []
    return shards
