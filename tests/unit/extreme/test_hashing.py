"""Which bucket a class falls into."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.utils import murmurhash3_32

from sparkdl.errors import ConfigError
from sparkdl.extreme.hashing import PRIME, BucketHash, FeatureHash, bucket_hashes, table

FAMILIES = ["universal", "murmur3"]
SEEDS = st.integers(0, 2**63)
KEYS = st.lists(st.integers(0, PRIME - 1), max_size=20)


def bucket_of(function: BucketHash, key: int) -> int:
    """The bucket of one class, by Python's own integers."""
    factor, shift = function._hash._coefficients
    if function.family == "murmur3":
        return murmurhash3_32(key.to_bytes(8, "little"), seed=factor & 0xFFFFFFFF, positive=True) % function.num_buckets
    return (factor * key + shift) % PRIME % function.num_buckets


@pytest.mark.parametrize("family", FAMILIES)
@given(keys=KEYS, seed=SEEDS, repetition=st.integers(0, 1000), buckets=st.integers(1, 2**31))
def test_many_classes_hash_as_one_by_one(family, keys, seed, repetition, buckets):
    function = BucketHash(buckets, seed, repetition, family)
    found = function.buckets(np.array(keys, dtype=np.int64))
    assert found.tolist() == [bucket_of(function, key) for key in keys]
    assert all(0 <= bucket < buckets for bucket in found)


@pytest.mark.parametrize(
    ("family", "expected"),
    [("universal", [347, 463, 66, 182, 269, 122, 232]), ("murmur3", [382, 137, 104, 252, 214, 447, 207])],
)
def test_the_values_are_the_same_on_every_platform(family, expected):
    function = BucketHash(512, seed=7, repetition=3, family=family)
    assert function.buckets([0, 1, 2, 3, 2**31, 10**15, PRIME - 1]).tolist() == expected


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.uint64])
def test_the_type_of_the_indices_does_not_matter(kind):
    function = BucketHash(100, seed=0, repetition=0)
    assert function.buckets(np.arange(9, dtype=kind)).tolist() == [bucket_of(function, key) for key in range(9)]


@pytest.mark.parametrize("family", FAMILIES)
def test_two_classes_collide_in_one_of_b_repetitions(family):
    buckets, classes, repetitions = 32, 60, 400
    scattered = np.random.default_rng(0).choice(10**9, classes, replace=False)
    found = np.array([f.buckets(scattered) for f in bucket_hashes(buckets, repetitions, seed=0, family=family)])
    first, second = np.triu_indices(classes, k=1)
    rate = (found[:, first] == found[:, second]).mean(axis=0)  # of each pair, over independent functions
    deviation = math.sqrt(1 / buckets * (1 - 1 / buckets) / repetitions)
    assert rate.mean() == pytest.approx(1 / buckets, rel=0.05)
    assert rate.max() < 1 / buckets + 5 * deviation


@pytest.mark.parametrize("family", FAMILIES)
def test_buckets_are_of_similar_size(family):
    buckets, classes = 64, 64_000
    for function in bucket_hashes(buckets, 5, seed=0, family=family):
        sizes = np.bincount(function.buckets(np.arange(classes)), minlength=buckets)
        assert sizes.sum() == classes
        assert np.abs(sizes - 1000).max() < 6 * math.sqrt(1000)


@pytest.mark.parametrize("family", FAMILIES)
def test_repetitions_and_seeds_are_independent_functions(family):
    classes = np.arange(20_000)
    functions = [*bucket_hashes(100, 3, seed=0, family=family), BucketHash(100, seed=1, repetition=0, family=family)]
    found = [function.buckets(classes) for function in functions]
    for index, one in enumerate(found):
        for other in found[:index]:
            assert (one == other).mean() == pytest.approx(0.01, abs=0.004)


def test_enough_repetitions_tell_all_classes_apart():
    found = table(bucket_hashes(32, 12, seed=0), 5000)
    assert len(np.unique(found, axis=1).T) == 5000


def test_a_part_of_the_table_is_a_part_of_the_whole():
    hashes = bucket_hashes(512, 4, seed=0)
    whole = table(hashes, 200_000)
    assert whole.shape == (4, 200_000) and whole.dtype == np.int32
    np.testing.assert_array_equal(table(hashes, 150_000, start=100_000), whole[:, 100_000:150_000])


def test_hashed_features_are_spread_evenly():
    found = np.bincount(FeatureHash(256, seed=0, repetition=0).columns(np.arange(256_000)), minlength=256)
    assert found.min() > 800 and found.max() < 1200


def test_each_repetition_hashes_features_differently():
    first, second = (FeatureHash(100, seed=0, repetition=number).columns(np.arange(10_000)) for number in (0, 1))
    assert (first == second).mean() == pytest.approx(0.01, abs=0.004)


@pytest.mark.parametrize("key", [-1, PRIME])
def test_a_class_index_out_of_range_is_an_error(key):
    function = BucketHash(8, seed=0, repetition=0)
    with pytest.raises(ValueError, match=str(key)):
        function.buckets([0, key])


def test_with_a_bucket_for_each_class_the_identity_tells_all_of_them_apart():
    identity = BucketHash(7, seed=3, repetition=2, family="identity")
    assert identity.buckets(range(7)).tolist() == list(range(7))


def test_impossible_hashes_are_errors():
    with pytest.raises(ConfigError, match="at least one bucket, not 0"):
        BucketHash(0, seed=0, repetition=0)
    with pytest.raises(ConfigError, match="'md5' is not known"):
        BucketHash(8, seed=0, repetition=0, family="md5")
    with pytest.raises(ConfigError, match="at least one dimension"):
        FeatureHash(0, seed=0, repetition=0)


def test_universal_hashes_keep_neighbours_apart_and_murmur3_does_not():
    families = ("universal", "murmur3")
    tables = {family: table(bucket_hashes(512, 16, seed=0, family=family), 18_525) for family in families}
    together = {
        family: sum((row[gap:] == row[:-gap]).mean() for row in found for gap in range(1, 30)) / (16 * 29)
        for family, found in tables.items()
    }
    assert together["universal"] == 0
    assert together["murmur3"] == pytest.approx(1 / 512, rel=0.1)
