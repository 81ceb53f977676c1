"""Small datasets, written without Spark."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparkdl.data.card import LABEL_COLUMN, LABELS_NAME, Card, InputSpec
from sparkdl.data.card_parts import LabelsFile, SparseCounts, SplitCard
from sparkdl.data.dataset import Dataset
from sparkdl.data.preparing.row_group import write_row_group
from sparkdl.data.row_groups import file_name, write_row_groups_file
from sparkdl.data.sparse_rows import SPARSE_COUNTS, write_sparse_row_group

VECTORS = InputSpec(column="features", kind="vector", shape=(3,), dtype="float32")
IMAGES = InputSpec(column="image", kind="image", shape=(2, 2, 1), dtype="uint8", mean=(0.5,), std=(0.25,))

SPARK_VECTOR = pa.struct(
    [
        ("type", pa.int8()),
        ("size", pa.int32()),
        ("indices", pa.list_(pa.int32())),
        ("values", pa.list_(pa.float64())),
    ]
)
"""Spark ML's vectors as tasks get them."""

MakeDataset = Callable[..., Dataset]


def make(folder: Path, sizes: Sequence[int], *, input: InputSpec = VECTORS) -> Dataset:
    """A dataset whose label is the number of the row; a vector repeats it, an image holds it modulo 256."""
    records = []
    (folder / "train").mkdir(parents=True)
    for number, rows in enumerate(sizes):
        labels = np.arange(rows, dtype=np.int64) + sum(sizes[:number])
        if input.kind == "vector":
            column = pa.array([[float(label)] * 3 for label in labels], pa.list_(pa.float32()))
        else:
            column = pa.array([bytes([label % 256] * 4) for label in labels], pa.binary())
        table = pa.table({input.column: column, LABEL_COLUMN: labels})
        records.append(write_row_group(str(folder / "train" / file_name(number)), table, input))
    card = Card.create(
        input=input,
        label_names=tuple(map(str, range(sum(sizes)))),
        splits={"train": SplitCard(num_rows=sum(sizes), num_groups=len(sizes), class_counts=(1,) * sum(sizes))},
        row_groups=write_row_groups_file(str(folder), {"train": pa.Table.from_pylist(records)}),
        raw_columns={input.column: "array<float>"},
        preprocessing=False,
        settings={"seed": 0},
        source="3-abc",
    )
    (folder / "card.json").write_text(card.to_json())
    return Dataset.open(str(folder))


def make_sparse(folder: Path, sizes: Sequence[int]) -> Dataset:
    """A sparse dataset of width 50. Row i has i % 4 features, all of value i, and the labels i and -1 (or just i)."""
    total = sum(sizes)
    (folder / "train").mkdir(parents=True)
    pq.write_table(
        pa.table({"name": list(map(str, range(total))), "count": np.ones(total, np.int64)}), folder / LABELS_NAME
    )
    content = (folder / LABELS_NAME).read_bytes()
    labels = LabelsFile(classes=total, bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
    input = InputSpec(column="features", kind="sparse", shape=(50,), dtype="float32")
    records, counts = [], np.zeros(len(SPARSE_COUNTS), int)
    for number, rows in enumerate(sizes):
        begin = sum(sizes[:number])
        vectors = [
            {"type": 0, "size": 50, "indices": list(range(i % 4)), "values": [float(i + 1)] * (i % 4)}
            for i in range(begin, begin + rows)
        ]
        names = [[str(i)] if i % 3 else [str(i), "unseen"] for i in range(begin, begin + rows)]
        table = pa.table({"features": pa.array(vectors, SPARK_VECTOR), LABEL_COLUMN: pa.array(names)})
        path = folder / "train" / file_name(number)
        records.append(write_sparse_row_group(str(path), table, input, labels, str(folder)))
        counts += records[-1]["counts"]
    card = Card.create(
        input=input,
        label_names=(),
        labels=labels,
        splits={
            "train": SplitCard(
                num_rows=total,
                num_groups=len(sizes),
                class_counts=(),
                sparse=SparseCounts(**dict(zip(SPARSE_COUNTS, counts.tolist(), strict=True))),
            )
        },
        row_groups=write_row_groups_file(str(folder), {"train": pa.Table.from_pylist(records)}),
        raw_columns={"text": "string"},
        preprocessing=False,
        settings={"seed": 0},
        source="3-abc",
    )
    (folder / "card.json").write_text(card.to_json())
    return Dataset.open(str(folder))


@pytest.fixture
def make_dataset(tmp_path: Path) -> MakeDataset:
    """Makes a dataset with row groups of the given sizes."""

    def make_in_folder(sizes: Sequence[int], *, input: InputSpec = VECTORS) -> Dataset:
        return make(tmp_path / "dataset", sizes, input=input)

    return make_in_folder
