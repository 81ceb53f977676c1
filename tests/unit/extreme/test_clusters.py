"""Clusters of classes as buckets."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from scipy import sparse

from benchmarks.extreme.made_up import Shape, write_dataset
from sparkdl.extreme.clusters import cluster_classes
from sparkdl.extreme.fit import choose_buckets
from sparkdl.extreme.hashing import BucketHash, BucketTable
from sparkdl.settings import Extreme

TOPICS, OF_A_TOPIC = 8, 12


def classes_of_topics() -> sparse.csr_array:
    """Class k is of topic k modulo 8: it has that topic's feature, and a weaker one of its own."""
    number = TOPICS * OF_A_TOPIC
    rows = np.repeat(np.arange(number), 2)
    columns = np.stack([np.arange(number) % TOPICS, TOPICS + np.arange(number)], axis=1).ravel()
    values = np.tile(np.array([0.9, 0.3], np.float32), number)
    return sparse.csr_array((values, (rows, columns)), (number, TOPICS + number))


def sizes(buckets: npt.NDArray[np.int32], number: int) -> list[int]:
    return sorted(np.bincount(buckets, minlength=number).tolist())


def test_classes_that_are_alike_share_their_bucket() -> None:
    buckets = cluster_classes(classes_of_topics(), TOPICS, seed=0, repetition=1)
    together = sum(len(set(buckets[topic::TOPICS])) == 1 for topic in range(TOPICS))
    assert together >= TOPICS - 2  # a random start may tear a topic
    assert sizes(buckets, TOPICS) == [OF_A_TOPIC] * TOPICS


@pytest.mark.parametrize("number", [2, 3, 5, 7, 96, 200])
def test_buckets_are_equally_large_whatever_their_number(number: int) -> None:
    found = sizes(cluster_classes(classes_of_topics(), number, seed=0, repetition=1), number)
    assert found[-1] - found[0] <= 1
    assert sum(found) == TOPICS * OF_A_TOPIC


def test_they_are_the_same_again_and_others_in_another_repetition_or_with_another_seed() -> None:
    def found(seed: int, repetition: int) -> list[int]:
        return cluster_classes(classes_of_topics(), 6, seed=seed, repetition=repetition).tolist()

    assert found(3, 1) == found(3, 1)
    assert found(3, 1) != found(3, 5)
    assert found(3, 1) != found(4, 1)


def test_classes_without_rows_are_spread_over_all_buckets() -> None:
    nothing = sparse.csr_array((1000, 5), dtype=np.float32)
    buckets = cluster_classes(
        sparse.csr_array(sparse.vstack([classes_of_topics()[:, :5], nothing])), 4, seed=0, repetition=1
    )
    assert min(sizes(buckets[-1000:], 4)) > 150


def test_every_other_repetition_has_clusters_the_same_whatever_shares_its_task(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data", Shape(rows=2_000, features=500, classes=90, draws=8))
    settings = Extreme(buckets=8, hashing="mixed")
    found = choose_buckets(dataset, settings, [0, 1, 2, 3])
    assert [type(buckets) for buckets in found.values()] == [BucketHash, BucketTable, BucketHash, BucketTable]
    again = choose_buckets(dataset, settings, [3])
    np.testing.assert_array_equal(found[3].buckets(np.arange(90)), again[3].buckets(np.arange(90)))
    kinds = {
        hashing: {type(each) for each in choose_buckets(dataset, Extreme(buckets=8, hashing=hashing), [0, 1]).values()}
        for hashing in ("random", "clusters")
    }
    assert kinds == {"random": {BucketHash}, "clusters": {BucketTable}}
