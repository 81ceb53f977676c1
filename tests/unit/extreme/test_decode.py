"""From bucket scores back to classes."""

import numpy as np
import pytest
import torch

from sparkdl.errors import ConfigError
from sparkdl.extreme import decode
from sparkdl.extreme.decode import Decoder, prior_weight
from sparkdl.extreme.hashing import BucketTable, bucket_hashes, table

ESTIMATORS = ["mean_probability", "sum_logits", "mean_log_probability", "minimum", "median"]
CLASSES, BUCKETS, REPETITIONS, ROWS = 1000, 32, 6, 70  # neither a multiple of a group nor of a block of rows


@pytest.fixture(scope="module")
def hashes():
    return bucket_hashes(BUCKETS, REPETITIONS, seed=0)


@pytest.fixture(scope="module")
def logits():
    return torch.randn(REPETITIONS, ROWS, BUCKETS, generator=torch.Generator().manual_seed(0)) * 2


@pytest.fixture(scope="module")
def counts():
    return np.random.default_rng(0).zipf(1.5, CLASSES)


@pytest.fixture(params=["compiled", "tensors"])
def way(request, monkeypatch):
    """Sums have loops of their own on a CPU; the operations on tensors are for a GPU, and a CPU can do them too."""
    if request.param == "tensors":
        monkeypatch.setattr(Decoder, "_in_loops", lambda self, logits: False)


def by_the_formula(hashes, logits, estimator, *, activation="softmax", counts=None, weight=0.0, classes=CLASSES):
    """Scores of all classes, of shape (n, K), in float64 and written down as the docstring has it."""
    places = torch.from_numpy(table(hashes, classes)).long()
    logits = logits.double()
    share = torch.ones(places.shape, dtype=torch.float64)
    if counts is not None:
        smoothed = torch.from_numpy(np.asarray(counts, dtype=np.float64)) + 1
        for row, mine in zip(share, places, strict=True):
            row[:] = smoothed / torch.zeros(BUCKETS, dtype=torch.float64).index_add(0, mine, smoothed)[mine]
    probabilities = logits.softmax(2) if activation == "softmax" else logits.sigmoid()
    z = torch.stack([logits[r][:, mine] for r, mine in enumerate(places)]) + weight * share.log()[:, None]
    p = torch.stack([probabilities[r][:, mine] for r, mine in enumerate(places)]) * share[:, None] ** weight
    mass = probabilities.sum(2).mean(0)[:, None]
    return {
        "mean_probability": BUCKETS / (BUCKETS - 1) * (p.mean(0) - mass / BUCKETS),
        "sum_logits": z.sum(0),
        "mean_log_probability": p.log().mean(0),
        "minimum": p.amin(0),
        "median": p.sort(0).values[(len(p) - 1) // 2],
    }[estimator]


def assert_best(found, scores, k):
    """The classes found are k different ones whose true scores are the k largest, in order."""
    expected = scores.topk(k).values
    torch.testing.assert_close(found.scores.double(), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(scores.gather(1, found.classes), expected, rtol=1e-4, atol=1e-5)
    assert all(len(set(row)) == k for row in found.classes.tolist())


@pytest.mark.parametrize("prior", [False, True])
@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_exact_decoding_finds_the_classes_of_the_best_scores(hashes, logits, counts, estimator, activation, prior, way):
    options = {"counts": counts, "prior": 0.3} if prior else {}
    decoder = Decoder(hashes, CLASSES, estimator=estimator, activation=activation, **options)
    expected = by_the_formula(
        hashes, logits, estimator, activation=activation, **({"counts": counts, "weight": 0.3} if prior else {})
    )
    assert_best(decoder.top_k(logits, 5), expected, 5)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_blocks_of_any_size_find_the_same(hashes, logits, counts, estimator, way, monkeypatch):
    whole = Decoder(hashes, CLASSES, estimator=estimator, counts=counts)
    blocked = Decoder(hashes, CLASSES, estimator=estimator, counts=counts, block_bytes=1)
    torch.testing.assert_close(blocked.top_k(logits, 7).scores, whole.top_k(logits, 7).scores)


def test_no_tensor_grows_beyond_the_block_size(hashes, monkeypatch):
    sizes = []
    reduce = Decoder._reduce
    monkeypatch.setattr(Decoder, "_reduce", lambda *args: sizes.append(found := reduce(*args)) or found)
    limit = 1 << 20
    decoder = Decoder(hashes, 50_000, block_bytes=limit, estimator="mean_probability")
    decoder.top_k(torch.randn(REPETITIONS, 64, BUCKETS), 5)
    assert sum(len(scores) for scores in sizes) >= 2 * 50_000
    assert max(scores.nbytes for scores in sizes) <= limit


def test_tables_too_large_to_keep_are_hashed_again(hashes, logits, monkeypatch):
    expected = Decoder(hashes, CLASSES).top_k(logits, 5)
    monkeypatch.setattr(decode, "KEPT_BYTES", 0)
    decoder = Decoder(hashes, CLASSES)
    torch.testing.assert_close(decoder.top_k(logits, 5), expected)
    assert not decoder._places


def test_all_classes_can_be_asked_for(logits):
    hashes = bucket_hashes(BUCKETS, REPETITIONS, seed=0)
    for block_bytes in (1, 1 << 20):
        found = Decoder(hashes, 90, block_bytes=block_bytes).top_k(logits, 90)
        assert found.classes.sort().values.tolist() == [list(range(90))] * ROWS


@pytest.mark.parametrize("rows", [0, 1])
def test_few_rows_work_too(hashes, logits, rows):
    decoder = Decoder(hashes, CLASSES)
    assert decoder.top_k(logits[:, :rows], 5).classes.shape == (rows, 5)


def test_logits_may_lie_in_memory_as_a_network_left_them(hashes, logits):
    decoder = Decoder(hashes, CLASSES)
    turned = logits.transpose(1, 2).contiguous().transpose(1, 2)
    torch.testing.assert_close(decoder.top_k(turned, 5), decoder.top_k(logits, 5))
    torch.testing.assert_close(decoder.top_k(logits.bfloat16(), 5), decoder.top_k(logits.bfloat16().float(), 5))


def test_decoding_does_not_change_the_logits(hashes, logits):
    before = logits.clone()
    for estimator in ESTIMATORS:
        Decoder(hashes, CLASSES, estimator=estimator).top_k(logits.transpose(1, 2).contiguous().transpose(1, 2), 5)
    assert torch.equal(logits, before)


def test_logits_and_log_probabilities_rank_alike(hashes, logits):
    found = [Decoder(hashes, CLASSES, estimator=name).top_k(logits, 1) for name in ESTIMATORS[1:3]]
    assert torch.equal(found[0].classes, found[1].classes)


def test_the_mean_probability_is_unbiased(hashes):
    truth = torch.from_numpy(np.random.default_rng(0).dirichlet(np.full(50, 0.3)))
    estimates = []
    for seed in range(400):
        draw = bucket_hashes(BUCKETS, REPETITIONS, seed=seed)
        buckets = torch.zeros(REPETITIONS, BUCKETS, dtype=torch.float64)
        for row, places in zip(buckets, torch.from_numpy(table(draw, 50)).long(), strict=True):
            row.index_add_(0, places, truth)
        logits = buckets.clamp_min(1e-30).log()[:, None].float()
        found = Decoder(draw, 50, estimator="mean_probability").top_k(logits, 50)
        estimates.append(torch.zeros(50).scatter(0, found.classes[0], found.scores[0]))
    assert torch.stack(estimates).mean(0).numpy() == pytest.approx(truth.numpy(), abs=0.004)


def test_the_minimum_is_never_below_the_truth(hashes):
    truth = torch.from_numpy(np.random.default_rng(0).dirichlet(np.full(CLASSES, 0.05)))
    buckets = torch.zeros(REPETITIONS, BUCKETS, dtype=torch.float64)
    for row, places in zip(buckets, torch.from_numpy(table(hashes, CLASSES)).long(), strict=True):
        row.index_add_(0, places, truth)
    found = Decoder(hashes, CLASSES, estimator="minimum").top_k(buckets.log()[:, None].float(), CLASSES)
    assert (found.scores[0] >= truth[found.classes[0]] - 1e-6).all()


def test_with_one_repetition_the_most_frequent_class_of_the_best_bucket_wins(logits, counts):
    hashes = bucket_hashes(BUCKETS, 1, seed=0)
    logits = logits[:1] * 100  # one bucket has all the probability
    places = hashes[0].buckets(np.arange(CLASSES))
    best = [max(np.flatnonzero(places == bucket), key=lambda k: counts[k]) for bucket in logits[0].argmax(1).tolist()]
    for estimator in ESTIMATORS:
        decoder = Decoder(hashes, CLASSES, estimator=estimator, counts=counts)
        found = decoder.top_k(logits, 1)
        np.testing.assert_array_equal(counts[found.classes[:, 0]], counts[best])


def test_the_weight_of_the_prior_shrinks_with_the_repetitions(hashes):
    weights = [prior_weight(hashes[0], repetitions) for repetitions in range(1, 50)]
    assert weights[0] == 1 and weights == sorted(weights, reverse=True) and weights[15] < 0.01


def test_shares_in_clusters_weigh_more_than_shares_in_random_buckets(hashes, logits, counts, way):
    clusters = BucketTable(BUCKETS, np.arange(CLASSES, dtype=np.int32) * BUCKETS // CLASSES)
    mixed = [*hashes[:-1], clusters]
    places = torch.from_numpy(table(mixed, CLASSES)).long()
    smoothed = torch.from_numpy(counts + 1.0)
    scores = torch.zeros(ROWS, CLASSES, dtype=torch.float64)
    for z, mine, buckets in zip(logits.double().log_softmax(2), places, mixed, strict=True):
        share = smoothed / torch.zeros(BUCKETS, dtype=torch.float64).index_add(0, mine, smoothed)[mine]
        weight = 0.3 if buckets is clusters else 1 / REPETITIONS**5
        scores += (z[:, mine] + weight * share.log()) / REPETITIONS
    assert_best(Decoder(mixed, CLASSES, counts=counts).top_k(logits, 5), scores, 5)


def test_compiled_loops_and_tensors_find_the_same(hashes, logits, counts, monkeypatch):
    decoder = Decoder(hashes, CLASSES, counts=counts)
    compiled = decoder.top_k(logits, 9)
    monkeypatch.setattr(Decoder, "_in_loops", lambda self, logits: False)
    torch.testing.assert_close(decoder.top_k(logits, 9), compiled)


def test_what_does_not_fit_is_an_error(hashes, logits):
    with pytest.raises(ConfigError, match="these have none"):
        Decoder([], CLASSES)
    with pytest.raises(ConfigError, match=r"\[8, 32\]"):
        Decoder([*hashes, *bucket_hashes(8, 1, seed=0)], CLASSES)
    with pytest.raises(ConfigError, match=r"1000 classes need as many counts, not an array of shape \(5,\)"):
        Decoder(hashes, CLASSES, counts=np.ones(5))
    mixed = [*hashes, BucketTable(BUCKETS, np.zeros(CLASSES, np.int32))]
    with pytest.raises(ConfigError, match="'median' needs the same exponent for all"):
        Decoder(mixed, CLASSES, counts=np.ones(CLASSES), estimator="median")
    with pytest.raises(ValueError, match=r"shape \(6, rows, 32\), found \(5, 70, 32\)"):
        Decoder(hashes, CLASSES).top_k(logits[:5], 5)
    with pytest.raises(ValueError, match="number of classes, 1000; found 1001"):
        Decoder(hashes, CLASSES).top_k(logits, 1001)
