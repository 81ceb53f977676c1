import hashlib
import itertools
import tempfile
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkdl.data.reading.loader import Batch, Loader
from sparkdl.data.reading.shards import Phase
from sparkdl.errors import DatasetError

from ..conftest import IMAGES, VECTORS, MakeDataset, make


def labels_of(batches: list[Batch]) -> list[int]:
    return [int(label) for batch in batches for label in batch.labels]


@settings(max_examples=30, deadline=None)
@given(
    small=st.integers(1, 9),
    larger=st.lists(st.booleans(), min_size=1, max_size=7),
    size=st.integers(1, 5),
    batch_size=st.integers(1, 7),
    shuffle=st.booleans(),
    epoch=st.integers(0, 3),
)
def test_every_row_is_used_once_an_epoch_whatever_the_number_of_ranks(
    small: int, larger: list[bool], size: int, batch_size: int, shuffle: bool, epoch: int
) -> None:
    sizes = [small + extra for extra in larger]
    with tempfile.TemporaryDirectory() as folder:
        dataset = make(Path(folder) / "dataset", sizes)
        loaders = [
            Loader(dataset, "train", batch_size=batch_size, rank=rank, size=size, shuffle=shuffle)
            for rank in range(size)
        ]
        ranks = [list(loader.epoch(epoch)) for loader in loaders]
    assert Counter(label for batches in ranks for label in labels_of(batches)) == Counter(range(sum(sizes)))
    assert {len(batches) for batches in ranks} == {loader.steps for loader in loaders} == {loaders[0].steps}
    for step in zip(*ranks, strict=True):
        assert {batch.global_rows for batch in step} == {sum(len(batch.labels) for batch in step)}
    for loader, batches in zip(loaders, ranks, strict=True):
        assert loader.rows(epoch) == len(labels_of(batches))


def test_inputs_stay_with_their_labels(make_dataset: MakeDataset) -> None:
    dataset = make_dataset([40, 41, 40], input=IMAGES)
    batches = list(Loader(dataset, "train", batch_size=16).epoch(0))
    for batch in batches:
        assert batch.inputs.shape == (len(batch.labels), 2, 2, 1)
        assert batch.inputs.dtype == torch.uint8
        assert (batch.inputs[:, 0, 0, 0] == batch.labels).all()
        assert (batch.inputs == batch.inputs[:, :1, :1]).all()


def test_vectors_arrive_as_float32(make_dataset: MakeDataset) -> None:
    (batch,) = Loader(make_dataset([5], input=VECTORS), "train", batch_size=8).epoch(0)
    assert batch.inputs.dtype == torch.float32
    assert (batch.inputs == batch.labels[:, None]).all()


def test_the_order_depends_on_seed_and_epoch_alone(make_dataset: MakeDataset) -> None:
    dataset = make_dataset([30] * 6)

    def order(seed: int, epoch: int) -> list[int]:
        return labels_of(list(Loader(dataset, "train", batch_size=8, seed=seed).epoch(epoch)))

    assert order(1, 0) == order(1, 0)
    assert order(1, 0) != order(1, 1)
    assert order(1, 0) != order(2, 0)


def test_rows_of_several_groups_are_mixed(make_dataset: MakeDataset) -> None:
    batch = next(Loader(make_dataset([30] * 6), "train", batch_size=30).epoch(0))
    assert len({int(label) // 30 for label in batch.labels}) > 2


def test_without_shuffling_rows_keep_the_order_of_the_dataset(make_dataset: MakeDataset) -> None:
    loader = Loader(make_dataset([7] * 20), "train", batch_size=9, shuffle=False)
    assert labels_of(list(loader.epoch(0))) == list(range(140))


@pytest.mark.parametrize("start", [0, 1, 5, 12, 13, 30])
def test_an_epoch_resumes_at_any_batch(make_dataset: MakeDataset, start: int) -> None:
    loader = Loader(make_dataset([11] * 24), "train", batch_size=9, seed=3)
    whole = list(loader.epoch(2))
    resumed = list(loader.epoch(2, start=start))
    assert [batch.labels.tolist() for batch in resumed] == [batch.labels.tolist() for batch in whole[start:]]
    assert all(torch.equal(a.inputs, b.inputs) for a, b in zip(resumed, whole[start:], strict=True))


def test_windows_before_the_start_are_not_read(make_dataset: MakeDataset) -> None:
    dataset = make_dataset([10] * 24)
    loader = Loader(dataset, "train", batch_size=10, shuffle=False)
    Path(dataset.row_groups("train")[0].path).unlink()
    assert labels_of(list(loader.epoch(0, start=8))) == list(range(80, 240))


def test_an_altered_file_is_found_while_reading(make_dataset: MakeDataset) -> None:
    dataset = make_dataset([50, 50])
    altered = Path(dataset.row_groups("train")[1].path)
    content = bytearray(altered.read_bytes())
    content[100] ^= 1
    altered.write_bytes(content)
    with pytest.raises(DatasetError, match=f"{altered.name} was altered"):
        list(Loader(dataset, "train", batch_size=10).epoch(0))


def test_a_deleted_file_is_named_while_reading(make_dataset: MakeDataset) -> None:
    dataset = make_dataset([50, 50])
    Path(dataset.row_groups("train")[0].path).unlink()
    with pytest.raises(DatasetError, match=r"part-000000\.parquet is missing"):
        list(Loader(dataset, "train", batch_size=10).epoch(0))


def test_an_epoch_that_is_abandoned_leaves_no_thread(make_dataset: MakeDataset) -> None:
    batches = Loader(make_dataset([20] * 30), "train", batch_size=5).epoch(0)
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    for thread in threading.enumerate():
        if thread.name.startswith("sparkdl-loader"):
            thread.join(timeout=10)
            assert not thread.is_alive()


@settings(max_examples=40, deadline=None)
@given(
    small=st.integers(3, 9),
    larger=st.lists(st.booleans(), min_size=1, max_size=7),
    phases=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(0, 6)), min_size=1, max_size=4),
    shuffle=st.booleans(),
)
def test_every_row_is_used_once_an_epoch_when_the_number_of_ranks_changes_on_the_way(
    small: int, larger: list[bool], phases: list[tuple[int, int, int]], shuffle: bool
) -> None:
    sizes = [small + extra for extra in larger]
    done: list[Phase] = []
    used: Counter[int] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        dataset = make(Path(folder) / "dataset", sizes)
        for number, (size, batch_size, batches) in enumerate(phases):
            last = number == len(phases) - 1
            loaders = [
                Loader(dataset, "train", batch_size=batch_size, rank=rank, size=size, shuffle=shuffle)
                for rank in range(size)
            ]
            ranks = [
                list(itertools.islice(loader.epoch(1, after=done), None if last else batches)) for loader in loaders
            ]
            for step in zip(*ranks, strict=True):
                assert {batch.global_rows for batch in step} == {sum(len(batch.labels) for batch in step)}
            used.update(label for taken in ranks for label in labels_of(taken))
            done.append(Phase(size, batch_size, batches))
    assert used == Counter(range(sum(sizes)))


def test_the_rest_of_a_shared_epoch_resumes_at_any_batch(make_dataset: MakeDataset) -> None:
    loader = Loader(make_dataset([11] * 24), "train", batch_size=9, rank=1, size=2, seed=3)
    after = [Phase(3, 5, 7)]
    whole = [batch.labels.tolist() for batch in loader.epoch(2, after=after)]
    assert [batch.labels.tolist() for batch in loader.epoch(2, 4, after=after)] == whole[4:]


def test_the_plan_of_an_epoch_is_what_it_has_always_been(make_dataset: MakeDataset) -> None:
    dataset = make_dataset([11, 12, 11, 12, 12] * 9 + [11])

    def order(rank: int, size: int, start: int = 0, *, after: Sequence[Phase] = ()) -> list[int]:
        loader = Loader(dataset, "train", batch_size=9, rank=rank, size=size, seed=3)
        return labels_of(list(loader.epoch(2, start, after=after)))

    assert order(1, 5)[:8] == [496, 114, 257, 210, 261, 492, 86, 264]
    assert order(2, 3, after=[Phase(4, 5, 6), Phase(2, 7, 3)])[:8] == [470, 363, 476, 467, 187, 468, 189, 472]
    plan = hashlib.sha256()
    for size in (1, 2, 5, 7, 60):
        for rank in range(size):
            plan.update(repr(order(rank, size)).encode())
            plan.update(repr(order(rank, size, 2, after=[Phase(4, 5, 6)])).encode())
    assert plan.hexdigest() == "39f78c35f4428e4ee02d895d5c483cae75a7a2c271b656ab499e49510bd6b914"
