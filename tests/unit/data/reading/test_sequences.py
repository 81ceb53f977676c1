"""Rows of different lengths: padded to the longest of a batch, with others that are about as long."""

from collections.abc import Iterator
from itertools import islice

import numpy as np
import pyarrow as pa
import pytest
import torch

from sparkdl.data import Batch, Card, Dataset, Loader, Phase
from sparkdl.data.card import LABEL_COLUMN
from sparkdl.data.card_parts import SplitCard
from sparkdl.data.named_files import write_named_row_group
from sparkdl.data.row_groups import file_name, write_row_groups_file
from sparkdl.distributed_loader import dataloader
from sparkdl.inputs.spec import InputSpec
from sparkdl.preprocessing.input_rows import as_binary

SPECS = {
    "words": InputSpec(column="words", kind="tokens", shape=(200,), dtype="int32", vocabulary=10_000, padding=3),
    "twice": InputSpec(column="twice", kind="vector", shape=(2,), dtype="float32"),
}
SIZES = [700, 700, 700, 699]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Rows of 5 to 200 words, all of which are the row's number, as are its vector and its label."""
    folder, random = tmp_path_factory.mktemp("texts"), np.random.default_rng(0)
    (folder / "train").mkdir()
    records = []
    for group, rows in enumerate(SIZES):
        numbers = np.arange(rows) + sum(SIZES[:group])
        lengths = random.integers(5, 201, rows)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        words = as_binary(np.repeat(numbers, lengths).astype(np.int32), offsets)
        twice = as_binary(np.repeat(numbers, 2).astype(np.float32), np.arange(rows + 1) * 2)
        structs = pa.StructArray.from_arrays([words, twice, pa.array(np.zeros(rows, np.int32))], [*SPECS, "_wrong"])
        table = pa.table({"inputs": structs, LABEL_COLUMN: pa.array(numbers)})
        records.append(write_named_row_group(str(folder / "train" / file_name(group)), table, "inputs", SPECS))
    total = sum(SIZES)
    card = Card.create(
        version=5,
        inputs=SPECS,
        label_names=tuple(map(str, range(total))),
        splits={"train": SplitCard(num_rows=total, num_groups=len(SIZES), class_counts=(1,) * total)},
        row_groups=write_row_groups_file(str(folder), {"train": pa.Table.from_pylist(records)}),
        raw_columns={"words": "string"},
        preprocessing=False,
        settings={},
        source="none",
    )
    return Dataset(str(folder), card)


def words(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    assert isinstance(batch.inputs, dict)
    return batch.inputs["words"], batch.inputs["words_mask"]


def batches(dataset: Dataset, epoch: int = 0, **how: int) -> Iterator[Batch]:
    return Loader(dataset, "train", **{"batch_size": 32, "seed": 7, **how}).epoch(epoch)


def alike(one: Batch, other: Batch) -> bool:
    assert isinstance(one.inputs, dict) and isinstance(other.inputs, dict)
    return all(torch.equal(each, other.inputs[name]) for name, each in one.inputs.items())


def test_every_row_comes_once_whole_and_with_its_mask(texts: Dataset) -> None:
    seen = []
    for size in (1, 3):
        ranks = [list(batches(texts, rank=rank, size=size)) for rank in range(size)]
        assert len({len(each) for each in ranks}) == 1  # equal steps
        for batch in (batch for each in ranks for batch in each if len(batch.labels)):
            found, mask = words(batch)
            assert isinstance(batch.inputs, dict)
            assert found.dtype == torch.int64 and mask.dtype == torch.bool and mask.any(dim=0).all()
            assert (torch.where(mask, found, 3) == found).all()
            assert (torch.where(mask, found, batch.labels[:, None]) == batch.labels[:, None]).all()
            assert (batch.inputs["twice"] == batch.labels[:, None]).all()
            assert (mask.sum(dim=1) >= 5).all()
            seen += batch.labels.tolist()
    assert sorted(seen) == sorted([*range(sum(SIZES))] * 2)


def test_less_than_a_tenth_of_the_tokens_is_padding(texts: Dataset) -> None:
    for size in (1, 2):
        for rank in range(size):
            masks = [words(batch)[1] for batch in batches(texts, rank=rank, size=size)]
            padding = 1 - sum(int(mask.sum()) for mask in masks) / sum(mask.numel() for mask in masks)
            assert padding < 0.1
    unsorted = [words(batch)[1] for batch in Loader(texts, "train", batch_size=32, shuffle=False).epoch(0)]
    assert 1 - sum(int(mask.sum()) for mask in unsorted) / sum(mask.numel() for mask in unsorted) > 0.4


def test_ranks_have_batches_of_like_lengths_in_a_step(texts: Dataset) -> None:
    steps = zip(*[batches(texts, rank=rank, size=2) for rank in range(2)], strict=True)
    lengths = np.array([[words(batch)[0].shape[1] for batch in step] for step in steps])
    assert np.abs(lengths[:, 0] - lengths[:, 1]).mean() < 10


def test_short_and_long_batches_are_mixed_and_epochs_differ(texts: Dataset) -> None:
    first, second = ([words(batch)[0].shape[1] for batch in batches(texts, epoch)] for epoch in (0, 1))
    assert first != sorted(first) and first != second
    assert abs(np.corrcoef(np.arange(len(first)), first)[0, 1]) < 0.5


def test_an_epoch_goes_on_at_any_batch_to_the_last_bit(texts: Dataset) -> None:
    whole = list(batches(texts, rank=1, size=2))
    loader = Loader(texts, "train", batch_size=32, seed=7, rank=1, size=2)
    for start in (1, 20, 43, len(whole) - 1):
        rest = list(loader.epoch(0, start))
        assert len(rest) == len(whole) - start
        assert all(alike(one, other) for one, other in zip(rest, whole[start:], strict=True))


def test_another_number_of_ranks_uses_each_row_once_that_is_left(texts: Dataset) -> None:
    done = [batch.labels for rank in range(2) for batch in islice(batches(texts, rank=rank, size=2), 13)]
    after = [Phase(2, 32, 13)]
    for rank in range(3):
        loader = Loader(texts, "train", batch_size=16, seed=7, rank=rank, size=3)
        done += [batch.labels for batch in loader.epoch(0, after=after)]
    assert sorted(torch.cat(done).tolist()) == list(range(sum(SIZES)))


def test_a_loop_of_ones_own_gets_inputs_by_name_with_their_masks_and_goes_on_within_an_epoch(texts: Dataset) -> None:
    whole = list(dataloader(texts, batch_size=64))
    loader = dataloader(texts, batch_size=64)
    begun = list(islice(loader, 5))
    later = dataloader(texts, batch_size=64)
    later.load_state_dict(loader.state_dict())
    found = [*begun, *later]
    assert len(found) == len(whole) == len(loader)
    for (inputs, labels), (others, of_others) in zip(found, whole, strict=True):
        assert isinstance(inputs, dict) and isinstance(others, dict)
        assert list(inputs) == ["words", "words_mask", "twice"] and torch.equal(labels, of_others)
        assert all(torch.equal(each, others[name]) for name, each in inputs.items())
        assert torch.equal(inputs["words"][:, 0], labels) and torch.equal(inputs["twice"][:, 1], labels.float())
