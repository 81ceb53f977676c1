"""Compiled loops, and those that decode on a CPU."""

import numpy as np
import pytest
import torch

from sparkdl.extreme.hashing import bucket_hashes, table
from sparkdl.extreme.loops import Terms, compiled, scan

CLASSES, BUCKETS, ROWS, K = 700, 32, 70, 5


def terms_of(repetitions, *, scale=1.0, rows=ROWS, normalised=False):
    random = np.random.default_rng(0)
    return Terms(
        (random.standard_normal((repetitions, rows, BUCKETS)) * scale).astype(np.float32),
        random.standard_normal((repetitions, BUCKETS)).astype(np.float32),
        random.standard_normal(CLASSES).astype(np.float32),
        np.zeros(rows if normalised else 0, np.float32),
    )


def places_of(repetitions):
    buckets = table(bucket_hashes(BUCKETS, repetitions, seed=0), CLASSES)
    return np.ascontiguousarray(buckets.T + np.arange(repetitions, dtype=np.int32) * BUCKETS)


def scanned(terms, *, parts=1):
    """The best classes and their scores, of all classes in so many parts."""
    rows = terms.values.shape[1]
    scores, numbers = np.full((rows, K), -np.inf, np.float32), np.zeros((rows, K), np.int64)
    first = 0
    for places in np.array_split(places_of(len(terms.values)), parts):
        scan(terms, np.ascontiguousarray(places), scores, numbers, first=first)
        first += len(places)
    return scores, numbers


def all_scores(terms):
    """Of shape (n, K), as one would write them down."""
    values = terms.values.astype(np.float64) + terms.of_buckets[:, None]
    flat = values.transpose(1, 0, 2).reshape(values.shape[1], -1)
    return flat[:, places_of(len(values))].sum(2) + terms.of_classes


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("repetitions", [1, 6, 40])
def test_a_scan_finds_the_best_classes_whatever_their_scale(repetitions, scale):
    terms = terms_of(repetitions, scale=scale)
    scores, numbers = scanned(terms)
    expected = all_scores(terms)
    np.testing.assert_allclose(scores, np.sort(expected)[:, : -K - 1 : -1], rtol=1e-4, atol=1e-4 * scale)
    np.testing.assert_allclose(scores, np.take_along_axis(expected, numbers, 1), rtol=1e-4, atol=1e-4 * scale)


def test_rows_of_very_different_scales_do_not_disturb_each_other():
    terms = terms_of(6)
    terms.values[:, ::3] *= 1e4
    terms.values[:, 1::3] *= 1e-4
    scores, _ = scanned(terms)
    np.testing.assert_allclose(scores, np.sort(all_scores(terms))[:, : -K - 1 : -1], rtol=1e-4)


def test_buckets_without_probability_are_passed_over():
    terms = terms_of(6)
    terms.values[:, :, ::2] = -np.inf
    scores, _ = scanned(terms)
    expected = np.sort(all_scores(terms))[:, : -K - 1 : -1]
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-5)


def test_a_row_that_is_not_a_number_has_no_best_classes_and_its_neighbours_have_theirs():
    terms = terms_of(6)
    whole, _ = scanned(terms)
    terms.values[:, 3] = np.nan
    scores, _ = scanned(terms)
    assert np.isneginf(scores[3]).all()
    np.testing.assert_array_equal(np.delete(scores, 3, 0), np.delete(whole, 3, 0))


def test_classes_can_be_scanned_in_parts_and_rows_in_threads():
    one, several = torch.get_num_threads(), 3
    found = scanned(terms_of(6))
    np.testing.assert_equal(scanned(terms_of(6), parts=4), found)
    torch.set_num_threads(several)
    try:
        np.testing.assert_equal(scanned(terms_of(6)), found)
    finally:
        torch.set_num_threads(one)


@pytest.mark.parametrize("scale", [0.1, 5.0, 300.0])
def test_normalisers_are_those_of_a_softmax(scale):
    terms = terms_of(6, scale=scale, normalised=True)
    scanned(terms)
    expected = torch.from_numpy(terms.values).double().logsumexp(2).sum(0)
    np.testing.assert_allclose(terms.normalisers, expected.numpy(), rtol=2e-6, atol=2e-6)


def test_where_nothing_can_be_kept_on_disk_it_is_compiled_all_the_same():
    namespace: dict = {}
    exec("def twice(x):\n    return 2 * x", namespace)  # of no file, so Numba finds no place for what it compiles
    assert compiled()(namespace["twice"])(21) == 42
