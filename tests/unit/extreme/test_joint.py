"""Likely classes, found through joint buckets."""

import numpy as np
import pytest
import torch

from sparkdl.extreme import joint
from sparkdl.extreme.hashing import bucket_hashes, table
from sparkdl.extreme.joint import GROUPS, LOOKUPS, JointBuckets

CPU = torch.device("cpu")
ROWS = 20


def found_pairs(index, logits, buckets):
    found = index.find(logits, buckets)
    assert found.row.tolist() == sorted(found.row.tolist())
    return set(zip(found.row.tolist(), found.number.tolist(), strict=True))


def expected_pairs(index, logits, buckets):
    """Classes whose bucket is the best of its part in all repetitions of some group, one row and class at a time."""
    places = table(index.hashes, index.num_classes)
    best = np.zeros((len(places), ROWS, index.num_buckets), bool)
    for mine, each in zip(best, logits.numpy(), strict=False):
        for row, values in enumerate(each):
            start = 0
            for part in np.array_split(values, buckets):
                mine[row, start + part.argmax()] = True
                start += len(part)
    hits = np.stack([mine[:, place] for mine, place in zip(best, places, strict=True)])
    together = hits.reshape(index.groups, index.joined, ROWS, -1).all(1).any(0)
    return set(zip(*(each.tolist() for each in np.nonzero(together)), strict=True))


@pytest.mark.parametrize(
    ("num_classes", "num_buckets", "repetitions", "joined", "groups"),
    [(30, 32, 3, 1, 3), (900, 32, 7, 2, 3), (5_000, 32, 7, 3, 2), (900, 32, 1, 1, 1), (700, 27, 40, 2, GROUPS)],
)
def test_classes_are_found_where_the_best_buckets_of_a_group_meet(
    num_classes, num_buckets, repetitions, joined, groups
):
    index = JointBuckets(bucket_hashes(num_buckets, repetitions, seed=0), num_classes, CPU)
    assert (index.joined, index.groups) == (joined, groups)
    logits = torch.randn(repetitions, ROWS, num_buckets, generator=torch.Generator().manual_seed(0)) * 3
    for buckets in (1, 4, 7, num_buckets):
        assert found_pairs(index, logits, buckets) == expected_pairs(index, logits, buckets)


def test_joint_buckets_that_share_a_slot_lose_nothing(monkeypatch):
    hashes = bucket_hashes(32, 8, seed=0)
    logits = torch.randn(8, ROWS, 32, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(joint, "FEWEST_SLOTS", 1)
    index = JointBuckets(hashes, 200, CPU)
    assert index.slots < 32**index.joined
    assert found_pairs(index, logits, 6) > expected_pairs(index, logits, 6)


@pytest.mark.parametrize("num_classes", [3_000, 30_000, 300_000])
def test_no_more_classes_are_found_if_there_are_more(num_classes):
    index = JointBuckets(bucket_hashes(256, 16, seed=0), num_classes, CPU)
    logits = torch.randn(16, ROWS, 256, generator=torch.Generator().manual_seed(0))
    found = index.find(logits, index.usual_buckets)
    assert len(found.row) / ROWS <= LOOKUPS
    assert len(found.row) / ROWS == pytest.approx(index.found_by_chance(index.usual_buckets), rel=0.2)
