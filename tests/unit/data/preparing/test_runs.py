"""Row groups as runs of an order, found from counts: every row lands in one of them, and in the right one."""

from collections import Counter
from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pytest

from sparkdl.data.preparing.blocks import keys_for, opened, packed
from sparkdl.data.preparing.runs import GroupRun, Runs, plan_runs
from sparkdl.preprocessing.hashes import murmur3_of_ints


def all_groups(runs: Runs) -> list[GroupRun]:
    return [runs.group(place) for place in range(runs.num_groups)]


def counted(splits: Iterable[str], buckets: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """By split, the buckets that have rows, and how many."""
    named = np.array(list(splits))
    return {split: np.unique(buckets[named == split], return_counts=True) for split in set(named.tolist())}


def dealt(runs: Runs, splits: list[str], order: np.ndarray) -> dict[int, list[int]]:
    """By row group, the order of the rows that are sent there, through blocks of seven rows."""
    taken, groups = runs.dealt(pa.array(splits), order)
    rows = pa.RecordBatch.from_pydict({"order": order[taken]})
    keys = keys_for(runs.num_groups, 1)
    found = opened(packed([(groups, rows)], keys, block_rows=7))
    return {place: table.take(own).column("order").to_pylist() for place, table, own in found}


@pytest.mark.parametrize("bits", [0, 1, 3, 8, 16])
@pytest.mark.parametrize("groups", [1, 2, 5, 40])
def test_every_row_is_in_the_run_that_its_place_in_the_order_says(bits: int, groups: int) -> None:
    random = np.random.default_rng(0)
    limits = np.iinfo(np.int64)
    order = random.integers(limits.min, limits.max, 900, np.int64, endpoint=True)
    splits = ["test" if number % 9 == 0 else "train" for number in range(900)]
    shift = 64 - bits
    buckets = order >> shift if bits else np.zeros_like(order)
    runs = plan_runs(counted(splits, buckets), {"test": 1, "train": groups}, shift)
    sent = dealt(runs, splits, order)
    for split in ("test", "train"):
        expected = np.sort(order[np.array(splits) == split])
        found = []
        for place, run in enumerate(all_groups(runs)):
            if run.split == split:
                assert len(sent[place]) == run.sent
                found.append(sorted(sent[place])[run.skipped : run.skipped + run.rows])
        assert np.concatenate(found).tolist() == expected.tolist()
        sizes = [len(rows) for rows in found]
        assert max(sizes) - min(sizes) <= 1
    assert sum(map(len, sent.values())) <= 900 * (1 if groups == 1 else groups)


def test_few_rows_travel_twice() -> None:
    order = np.random.default_rng(0).integers(-(1 << 63), 1 << 62, 100_000)
    runs = plan_runs(counted(["train"] * 100_000, order >> (64 - 10)), {"train": 32}, 64 - 10)
    assert sum(run.sent for run in all_groups(runs)) < 1.06 * 100_000


def test_a_row_that_was_not_counted_makes_its_row_group_one_too_large() -> None:
    runs = plan_runs(counted(["train"] * 10, np.repeat([-1, 0], 5)), {"train": 2}, 62)
    order = np.array([-1] * 5 + [1] * 5 + [1 << 62], np.int64)
    sent = dealt(runs, ["train"] * 11, order)
    assert sorted(len(sent[place]) - run.sent for place, run in enumerate(all_groups(runs))) == [0, 1]


@pytest.mark.parametrize(("places", "tasks"), [(1, 1), (2, 2), (46, 8), (1000, 1000)])
def test_all_tasks_have_equally_many_places(places: int, tasks: int) -> None:
    partitions = Counter((murmur3_of_ints(keys_for(places, tasks)).astype(np.int64) % tasks).tolist())
    assert len(partitions) == tasks
    assert max(partitions.values()) - min(partitions.values()) <= 1


def test_blocks_keep_rows_of_every_type_and_nothing_else() -> None:
    rows = pa.RecordBatch.from_pydict(
        {
            "text": pa.array(["a", None, "ccc", "d"]),
            "list": pa.array([[1.0], [2.0, 3.0], [], [4.0]]),
            "bytes": pa.array([b"1", b"", b"333", None]),
        }
    )
    blocks = list(packed([(np.array([5, 2, 5, 2]), rows)], keys_for(6, 6), block_rows=10))
    found = {place: table.take(own) for place, table, own in opened(blocks)}
    assert set(found) == {2, 5}
    assert found[5].to_pylist() == rows.take([0, 2]).to_pylist()
    assert found[2].to_pylist() == rows.take([1, 3]).to_pylist()


def test_blocks_are_not_much_larger_than_their_rows_however_many_row_groups_there_are() -> None:
    random = np.random.default_rng(0)
    dealt = [
        (random.integers(0, 1_000_000, 4096), pa.RecordBatch.from_pydict({"row": pa.array([b"x" * 80] * 4096)}))
        for _ in range(20)
    ]
    blocks = list(packed(dealt, keys_for(1_000_000, 4096), block_rows=160))
    assert sum(batch.nbytes for batch in blocks) < 2 * sum(rows.nbytes for _, rows in dealt)
