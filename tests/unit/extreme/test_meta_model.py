"""Packed meta-models: what sharing a computation changes, and what it does not."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.nn import functional

from sparkdl.data import SparseBatch
from sparkdl.extreme.decode import Decoder
from sparkdl.extreme.fit import _Steps, bucket_hash, bucket_losses, new_models
from sparkdl.extreme.hashing import FeatureHash, table
from sparkdl.extreme.meta_model import MetaModels
from sparkdl.settings import Extreme

WIDTH, CLASSES = 300, 90
SETTINGS = Extreme(buckets=8, hidden=[16], batch_size=32)


def batch(number: int, *, rows: int = 32, labels_per_row: int = 1) -> SparseBatch:
    """Random rows of one to nine features; some have none."""
    random = np.random.default_rng(number)
    sizes = random.integers(0, 10, rows)
    indices = np.concatenate([random.choice(WIDTH, size, replace=False) for size in sizes])
    return SparseBatch(
        torch.from_numpy(indices),
        torch.from_numpy(random.random(len(indices), np.float32)),
        torch.from_numpy(np.concatenate([[0], sizes.cumsum()])),
        torch.from_numpy(random.integers(0, CLASSES, rows * labels_per_row)),
        torch.arange(rows + 1) * labels_per_row,
    )


def trained(repetitions: list[int], steps: int, settings: Extreme = SETTINGS) -> MetaModels:
    models = new_models(settings, WIDTH, repetitions)
    buckets = torch.from_numpy(table([bucket_hash(settings, number) for number in repetitions], CLASSES).astype(int))
    stepping = _Steps(models, settings, 100)
    for number in range(steps):
        stepping.take(batch(number), buckets)
    return models


@pytest.mark.parametrize("hidden", [[], [16], [16, 12]])
def test_sparse_rows_give_what_dense_rows_give(hidden: list[int]) -> None:
    models = MetaModels([3, 5], width=WIDTH, hidden=hidden, num_buckets=8, seed=1)
    rows = batch(0)
    dense = torch.zeros(32, WIDTH)
    row_of = torch.repeat_interleave(torch.arange(32), rows.offsets.diff())
    dense[row_of, rows.indices] = rows.values
    for place in range(2):
        state = models.state_of(place)
        values = dense @ state["table"] + state["bias.0"]
        for layer in range(1, len(hidden) + 1):
            values = functional.relu(values) @ state[f"weight.{layer}"] + state[f"bias.{layer}"]
        torch.testing.assert_close(models.logits(rows)[place], values)


@pytest.mark.parametrize("hidden", [[], [16]])
def test_hashed_rows_give_what_their_sums_over_columns_give(hidden: list[int]) -> None:
    hashes = [FeatureHash(40, seed=0, repetition=number) for number in (3, 5)]
    models = MetaModels([3, 5], width=40, hidden=hidden, num_buckets=8, feature_hashes=hashes, seed=1)
    rows = batch(0)
    row_of = torch.repeat_interleave(torch.arange(32), rows.offsets.diff())
    for place, each in enumerate(hashes):
        columns = torch.from_numpy(each.columns(rows.indices.numpy()))
        dense = torch.zeros(32, 40).index_put_((row_of, columns), rows.values, accumulate=True)
        state = models.state_of(place)
        values = dense @ state["table"] + state["bias.0"]
        if hidden:
            values = functional.relu(values) @ state["weight.1"] + state["bias.1"]
        torch.testing.assert_close(models.logits(rows)[place], values)


def test_hashed_repetitions_learn_alone_what_they_learn_packed() -> None:
    settings = SETTINGS.model_copy(update={"hashed_features": 40})
    alone, packed = trained([4], 5, settings).state_of(0), trained([0, 4, 9], 5, settings).state_of(1)
    assert alone["table"].shape == (40, 16)
    for name in alone:
        torch.testing.assert_close(alone[name], packed[name], rtol=0, atol=1e-5)


def test_a_repetition_starts_with_the_same_weights_in_any_pack() -> None:
    alone = MetaModels([7], width=WIDTH, hidden=[16], num_buckets=8, seed=0).state_of(0)
    packed = MetaModels([2, 7, 1], width=WIDTH, hidden=[16], num_buckets=8, seed=0).state_of(1)
    other = MetaModels([8], width=WIDTH, hidden=[16], num_buckets=8, seed=0).state_of(0)
    assert all(torch.equal(alone[name], packed[name]) for name in alone)
    assert not torch.equal(alone["table"], other["table"])


@pytest.mark.parametrize("hidden", [[], [16]])
def test_the_first_steps_of_a_packed_repetition_are_those_it_takes_alone(hidden: list[int]) -> None:
    settings = SETTINGS.model_copy(update={"hidden": hidden})
    alone, packed = trained([4], 5, settings).state_of(0), trained([0, 4, 9], 5, settings).state_of(1)
    for name in alone:
        torch.testing.assert_close(alone[name], packed[name], rtol=0, atol=1e-5)


def test_packed_repetitions_are_as_precise_as_they_are_alone() -> None:
    settings = Extreme(buckets=32, hidden=[32], batch_size=32, learning_rate=0.05)
    random = np.random.default_rng(5)
    typical = np.stack([random.choice(WIDTH, 6, replace=False) for _ in range(CLASSES)])

    def rows_of(classes: NDArray[np.int64]) -> SparseBatch:
        noise = random.integers(0, WIDTH, (len(classes), 3))
        features = np.concatenate([typical[classes][:, random.permutation(6)[:2]], noise], axis=1)
        ends = torch.arange(len(classes) + 1)
        return SparseBatch(
            torch.from_numpy(features.ravel()),
            torch.full((features.size,), 0.4),
            ends * 5,
            torch.from_numpy(classes),
            ends,
        )

    batches = [rows_of(random.integers(0, CLASSES, 32)) for _ in range(60)]
    unseen = rows_of(random.integers(0, CLASSES, 4000))

    def precision(packs: list[list[int]]) -> float:
        logits = []
        for pack in packs:
            models = MetaModels(pack, width=WIDTH, hidden=[32], num_buckets=32, seed=0)
            buckets = torch.from_numpy(table([bucket_hash(settings, number) for number in pack], CLASSES).astype(int))
            stepping = _Steps(models, settings, len(batches))
            for rows in batches:
                stepping.take(rows, buckets)
            logits.append(models.logits(unseen))
        decoder = Decoder([bucket_hash(settings, number) for pack in packs for number in pack], CLASSES)
        best = decoder.top_k(torch.cat(logits), 1).classes[:, 0]
        return 100 * (best == unseen.labels).double().mean().item()

    together = precision([[0, 1]])
    assert 20 < together < 95  # by chance 1
    assert precision([[0], [1]]) == pytest.approx(together, abs=0.3)


def test_the_same_pack_trains_to_the_same_bits() -> None:
    first, second = trained([0, 1], 10), trained([0, 1], 10)
    assert all(torch.equal(one, other) for one, other in zip(first.buffers(), second.buffers(), strict=True))
    assert all(torch.equal(one, other) for one, other in zip(first.parameters(), second.parameters(), strict=True))


def test_what_a_repetition_drops_does_not_depend_on_its_pack() -> None:
    settings = SETTINGS.model_copy(update={"dropout": 0.5})
    together, alone = trained([0, 1], 10, settings), trained([1], 10, settings)
    torch.testing.assert_close(together.state_of(1), alone.state_of(0), rtol=1e-3, atol=1e-5)
    whole = trained([1], 10)
    assert not torch.allclose(whole.state_of(0)["table"], alone.state_of(0)["table"], rtol=1e-2)
    torch.testing.assert_close(alone.logits(batch(7)), alone.logits(batch(7)), rtol=0, atol=0)


def test_a_feature_that_does_not_occur_keeps_its_weights() -> None:
    before = MetaModels([0], width=WIDTH, hidden=[16], num_buckets=8, seed=0).table.clone()
    models = trained([0], 1)
    unchanged = torch.ones(WIDTH, dtype=torch.bool)
    unchanged[batch(0).indices] = False
    assert torch.equal(models.table[unchanged], before[unchanged])
    assert not torch.equal(models.table[~unchanged], before[~unchanged])


def test_a_saved_repetition_is_the_one_that_was_trained() -> None:
    models = trained([0, 1], 3)
    copy = MetaModels([1], width=WIDTH, hidden=[16], num_buckets=8, seed=99)
    copy.load_state_of(0, models.state_of(1))
    torch.testing.assert_close(copy.logits(batch(50))[0], models.logits(batch(50))[1])


def test_the_target_of_several_labels_is_the_union_of_their_buckets() -> None:
    logits = torch.randn(1, 2, 4)
    rows = SparseBatch(
        torch.empty(0, dtype=torch.int64),
        torch.empty(0),
        torch.zeros(3, dtype=torch.int64),
        torch.tensor([0, 1, 2, 0]),
        torch.tensor([0, 3, 4]),
    )
    buckets = torch.tensor([[1, 1, 3]])  # the first row's three labels share two buckets
    logs = logits[0].log_softmax(1)
    wanted = -(logs[0, 1] + logs[0, 3]) / 2 - logs[1, 1]
    torch.testing.assert_close(bucket_losses(logits, rows, buckets, "softmax"), wanted[None])
    targets = torch.tensor([[0.0, 1, 0, 1], [0, 1, 0, 0]])
    wanted = functional.binary_cross_entropy_with_logits(logits[0], targets, reduction="sum")
    torch.testing.assert_close(bucket_losses(logits, rows, buckets, "binary"), wanted[None])
    single = batch(1)
    many = torch.randn(2, 32, 8)
    buckets = torch.randint(0, 8, (2, CLASSES))
    wanted = torch.stack(
        [functional.cross_entropy(many[place], buckets[place, single.labels], reduction="sum") for place in range(2)]
    )
    torch.testing.assert_close(bucket_losses(many, single, buckets, "softmax"), wanted)
