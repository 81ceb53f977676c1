"""Sparse batches, without Spark."""

import tempfile
import zlib
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkdl.data.card import InputSpec
from sparkdl.data.reading import sparse
from sparkdl.data.reading.sparse import SparseBatch, SparseLoader
from sparkdl.data.sparse_rows import decode_sparse
from sparkdl.errors import DataError, DatasetError

from ..conftest import SPARK_VECTOR, MakeDataset, make_sparse

INPUT = InputSpec(column="x", kind="sparse", shape=(50,), dtype="float32")


def first_labels(batches: Iterable[SparseBatch]) -> list[int]:
    return [int(label) for batch in batches for label in batch.labels[batch.label_offsets[:-1]]]


@settings(max_examples=30, deadline=None)
@given(
    small=st.integers(1, 9),
    larger=st.lists(st.booleans(), min_size=1, max_size=7),
    batch_size=st.integers(1, 20),
    shuffle=st.booleans(),
    epoch=st.integers(0, 3),
)
def test_every_row_is_used_once_an_epoch_with_its_features_and_labels(
    small: int, larger: list[bool], batch_size: int, shuffle: bool, epoch: int
) -> None:
    sizes = [small + extra for extra in larger]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sparse, "_WINDOW_BYTES", 1)
        dataset = make_sparse(Path(folder) / "dataset", sizes)
        loader = SparseLoader(dataset, "train", batch_size=batch_size, shuffle=shuffle)
        batches = list(loader.epoch(epoch))
    assert loader.rows == sum(sizes)
    assert len(batches) == loader.steps
    assert [len(batch.offsets) - 1 for batch in batches[:-1]] == [batch_size] * (len(batches) - 1)
    assert Counter(first_labels(batches)) == Counter(range(sum(sizes)))
    for batch in batches:
        assert [tensor.dtype for tensor in batch] == [torch.int64, torch.float32, *[torch.int64] * 3]
        for row, label in enumerate(batch.labels[batch.label_offsets[:-1]].tolist()):
            features = slice(int(batch.offsets[row]), int(batch.offsets[row + 1]))
            labels = slice(int(batch.label_offsets[row]), int(batch.label_offsets[row + 1]))
            assert batch.indices[features].tolist() == list(range(label % 4))
            assert batch.values[features].tolist() == [label + 1.0] * (label % 4)
            assert batch.labels[labels].tolist() == ([label] if label % 3 else [label, -1])


def test_order_depends_on_seed_and_epoch_alone(tmp_path: Path) -> None:
    dataset = make_sparse(tmp_path / "dataset", [20, 20, 19])

    def order(seed: int, epoch: int, batch_size: int = 7) -> list[int]:
        return first_labels(SparseLoader(dataset, "train", batch_size=batch_size, seed=seed).epoch(epoch))

    assert order(1, 2) == order(1, 2) == order(1, 2, batch_size=11)
    assert len({tuple(order(seed, epoch)) for seed in (1, 2) for epoch in (0, 1)}) == 4
    assert first_labels(SparseLoader(dataset, "train", batch_size=7, shuffle=False).epoch(0)) == list(range(59))


def test_batches_can_be_written_to(tmp_path: Path) -> None:
    dataset = make_sparse(tmp_path / "dataset", [8, 8])
    loader = SparseLoader(dataset, "train", batch_size=4, shuffle=False)
    for batch in loader.epoch(0):
        batch.values.zero_()
        batch.labels.zero_()
    assert first_labels(loader.epoch(0)) == list(range(16))


def test_embedding_bag_takes_a_batch_as_it_is(tmp_path: Path) -> None:
    dataset = make_sparse(tmp_path / "dataset", [8, 8])
    (batch,) = SparseLoader(dataset, "train", batch_size=16, shuffle=False).epoch(0)
    sums = torch.nn.functional.embedding_bag(
        batch.indices,
        torch.ones(50, 1),
        batch.offsets,
        mode="sum",
        per_sample_weights=batch.values,
        include_last_offset=True,
    )
    assert sums[:, 0].tolist() == [(i + 1) * (i % 4) for i in range(16)]


def test_an_altered_or_missing_file_is_named(tmp_path: Path) -> None:
    dataset = make_sparse(tmp_path / "dataset", [8, 8])
    path = Path(dataset.row_groups("train")[1].path)
    content = bytearray(path.read_bytes())
    content[30] ^= 1
    path.write_bytes(content)
    assert zlib.crc32(content) != dataset.row_groups("train")[1].crc32
    loader = SparseLoader(dataset, "train", batch_size=4)
    with pytest.raises(DatasetError, match=r"part-000001\.parquet was altered"):
        list(loader.epoch(0))
    path.unlink()
    with pytest.raises(DatasetError, match=r"part-000001\.parquet is missing"):
        list(loader.epoch(0))


def test_whole_rows_are_for_the_other_loader(make_dataset: MakeDataset) -> None:
    with pytest.raises(DatasetError, match="read it with Loader"):
        SparseLoader(make_dataset([3]), "train", batch_size=2)


def vectors(*rows: dict[str, object] | None) -> pa.Array:
    return pa.array(list(rows), SPARK_VECTOR)


def row(indices: list[int] | None, values: list[float], size: int | None = 50) -> dict[str, object]:
    return {"type": 0 if indices is not None else 1, "size": size, "indices": indices, "values": values}


WHOLE = row(None, [0.0] * 48 + [1.0, 2.0], None)


def test_vectors_of_both_forms_are_decoded_without_zeros() -> None:
    column = vectors(row([9], [9.0]), row([1, 5], [0.0, 3.0]), WHOLE, row([], []), row([2, 3], [1.0, 2.0]))
    for given_column in (column.slice(1), pa.chunked_array([column.slice(1, 2), column.slice(3)])):
        indices, values, offsets = decode_sparse(given_column, INPUT)
        assert indices.tolist() == [5, 48, 49, 2, 3]
        assert values.tolist() == [3.0, 1.0, 2.0, 1.0, 2.0]
        assert offsets.tolist() == [0, 1, 3, 3, 5]
        assert (indices.dtype, values.dtype) == (np.int32, np.float32)
    assert [list(pair) for pair in pairwise(offsets)] == [[0, 1], [1, 3], [3, 3], [3, 5]]


def test_no_rows_decode_to_nothing() -> None:
    indices, values, offsets = decode_sparse(pa.chunked_array([], SPARK_VECTOR), INPUT)
    assert (len(indices), len(values), offsets.tolist()) == (0, 0, [0])


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (None, "column 'x' has 1 null rows"),
        (row([1], [1.0], 51), "column 'x': 1 rows have 51 features instead of 50"),
        (row(None, [1.0, 2.0], None), "column 'x': 1 rows have 2 features instead of 50"),
        (row([50], [1.0]), "feature indices outside of 0 to 49"),
        (row([-1], [1.0]), "feature indices outside of 0 to 49"),
    ],
)
def test_vectors_that_do_not_fit_are_counted(bad: dict[str, object] | None, message: str) -> None:
    with pytest.raises(DataError, match=message):
        decode_sparse(vectors(WHOLE, bad), INPUT)
