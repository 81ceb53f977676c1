"""Groups that are ranked within, from a file to batches."""

from collections.abc import Iterable
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from sparkdl.data import Batch, Dataset, InputSpec, Loader, Phase
from sparkdl.data.sparse_rows import write_sparse_row_group
from sparkdl.errors import DataError

from ....conftest import write_vectors

SIZES = [1, 4, 2, 7, 3, 3, 1, 5, 2, 6, 4]
WIDTH = 3


@pytest.fixture(scope="module")
def groups() -> list[tuple[np.ndarray, np.ndarray]]:
    """Features, of which some are zero, and relevances; the first feature says whose they are."""
    random = np.random.default_rng(0)
    made = []
    for number, rows in enumerate(SIZES):
        features = random.normal(size=(rows, WIDTH)) * (random.random((rows, WIDTH)) > 0.5)
        features[:, 0] = number
        made.append((features, random.integers(0, 3, rows).astype(float)))
    return made


@pytest.fixture(scope="module")
def dataset(groups: list[tuple[np.ndarray, np.ndarray]], tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Three files, of four, four and three groups."""
    files = [groups[:4], groups[4:8], groups[8:]]
    splits = {"train": [tuple(zip(*file, strict=True)) for file in files]}
    return write_vectors(tmp_path_factory.mktemp("groups") / "dataset", splits, task="ranking", label_names=())


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("shuffle", [True, False])
def test_each_group_is_read_whole_and_once_by_one_rank(
    dataset: Dataset, groups: list[tuple[np.ndarray, np.ndarray]], *, size: int, shuffle: bool
) -> None:
    found = []
    for rank in range(size):
        loader = Loader(dataset, "train", batch_size=2, rank=rank, size=size, shuffle=shuffle)
        for batch in loader.epoch(1):
            sizes = (batch.labels >= 0).sum(dim=1).tolist()
            assert len(batch.inputs) == sum(sizes) and len(batch.labels) <= 2
            ends = np.cumsum([0, *sizes])
            for (begin, end), labels in zip(pairwise(ends), batch.labels, strict=True):
                number = int(batch.inputs[begin, 0])
                features, relevance = groups[number]
                assert np.array_equal(batch.inputs[begin:end], features.astype(np.float32))
                assert labels[: end - begin].tolist() == relevance.tolist()
                found.append(number)
    assert sorted(found) == list(range(len(SIZES)))


def test_an_epoch_goes_on_with_other_ranks_where_some_have_stopped(dataset: Dataset) -> None:
    def numbers(batches: Iterable[Batch]) -> list[int]:
        return [int(number) for batch in batches for number in batch.inputs[:, 0].unique()]

    loaders = [Loader(dataset, "train", batch_size=2, rank=rank, size=2) for rank in range(2)]
    before = [number for loader in loaders for number in numbers(islice(loader.epoch(3), 2))]
    after = [Phase(size=2, batch_size=2, batches=2)]
    others = [Loader(dataset, "train", batch_size=1, rank=rank, size=3) for rank in range(3)]
    rest = [number for loader in others for number in numbers(loader.epoch(3, after=after))]
    assert len(before) == 8 and sorted(before + rest) == list(range(len(SIZES)))


def test_a_group_that_no_batch_could_hold_is_refused(tmp_path: Path) -> None:
    wide = InputSpec(column="features", kind="sparse", shape=(1 << 30,), dtype="float32")
    vector = {"type": 0, "size": 1 << 30, "indices": [7], "values": [1.0]}
    vectors = pa.list_(
        pa.struct(
            {"type": pa.int8(), "size": pa.int32(), "indices": pa.list_(pa.int32()), "values": pa.list_(pa.float64())}
        )
    )
    table = pa.table({"features": pa.array([[vector] * 3], vectors), "label": [[0.0, 1.0, 2.0]]})
    with pytest.raises(DataError, match=r"a group of 3 rows with 1,073,741,824 features each is too large"):
        write_sparse_row_group(str(tmp_path / "part"), table, wide, None, "")
