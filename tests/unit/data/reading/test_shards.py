from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sparkdl.data.reading.shards import Deal, EvenCut, Segment, rank_sizes


def deal(sizes: list[int], order: list[int], size: int, *, by: type[Deal | EvenCut] = Deal) -> list[list[Segment]]:
    """The segments of all ranks."""
    dealt = by(np.array(sizes), np.array(order), size)
    shards = [[Segment(*segment) for segment in dealt.shard(rank).tolist()] for rank in range(size)]
    assert dealt.rows.tolist() == [sum(segment.rows for segment in shard) for shard in shards]
    return shards


@given(
    small=st.integers(1, 20),
    larger=st.lists(st.booleans(), min_size=1, max_size=17),
    size=st.integers(1, 6),
    seed=st.integers(0, 2**32),
)
def test_every_row_is_dealt_once_and_shards_differ_by_at_most_a_row(
    small: int, larger: list[bool], size: int, seed: int
) -> None:
    check_shards([small + extra for extra in larger], size, seed, by=Deal)


@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=17), size=st.integers(1, 6), seed=st.integers(0, 2**32))
def test_row_groups_of_any_sizes_are_cut_into_shards_that_differ_by_at_most_a_row(
    sizes: list[int], size: int, seed: int
) -> None:
    shards = check_shards(sizes, size, seed, by=EvenCut)
    assert sum(map(len, shards)) < len(sizes) + size  # no group is cut oftener than shards end within it


def check_shards(sizes: list[int], size: int, seed: int, *, by: type[Deal | EvenCut]) -> list[list[Segment]]:
    """Check that every row is in one shard, and that shards are even."""
    order = [int(group) for group in np.random.default_rng(seed).permutation(len(sizes))]
    shards = deal(sizes, order, size, by=by)
    dealt = Counter(
        (segment.group, row) for shard in shards for segment in shard for row in range(segment.start, segment.stop)
    )
    assert dealt == Counter((group, row) for group, rows in enumerate(sizes) for row in range(rows))
    rows = [sum(segment.rows for segment in shard) for shard in shards]
    assert (max(rows), min(rows)) == rank_sizes(sum(sizes), size)
    return shards


def test_groups_that_divide_evenly_are_never_cut() -> None:
    sizes = [5, 6, 5, 6, 5, 5, 5, 5]
    for size in (1, 2, 4, 8):
        shards = deal(sizes, list(range(8)), size)
        assert all(segment.rows == sizes[segment.group] for shard in shards for segment in shard)


def test_a_shard_keeps_the_order_of_the_epoch() -> None:
    order = [3, 1, 0, 2]
    for shard in deal([4, 5, 4, 5], order, 2):
        places = [order.index(segment.group) for segment in shard]
        assert places == sorted(places)
