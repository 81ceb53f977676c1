"""Small datasets, written without Spark."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from sparkdl.data.card import LABEL_COLUMN, Card, File, InputSpec, SplitCard
from sparkdl.data.dataset import Dataset
from sparkdl.data.write import write_row_group

VECTORS = InputSpec(column="features", kind="vector", shape=(3,), dtype="float32")
IMAGES = InputSpec(column="image", kind="image", shape=(2, 2, 1), dtype="uint8", mean=(0.5,), std=(0.25,))

KEYS = "rows", "bytes", "sha256", "crc32", "inputs_at", "labels_at"

MakeDataset = Callable[..., Dataset]


def make(folder: Path, sizes: Sequence[int], *, input: InputSpec = VECTORS) -> Dataset:
    """A dataset whose label is the number of the row; a vector repeats it, an image holds it modulo 256."""
    files = []
    (folder / "train").mkdir(parents=True)
    for number, rows in enumerate(sizes):
        labels = np.arange(rows, dtype=np.int64) + sum(sizes[:number])
        if input.kind == "vector":
            column = pa.array([[float(label)] * 3 for label in labels], pa.list_(pa.float32()))
        else:
            column = pa.array([bytes([label % 256] * 4) for label in labels], pa.binary())
        name = f"train/part-{number}.parquet"
        table = pa.table({input.column: column, LABEL_COLUMN: labels})
        record = write_row_group(str(folder / name), table, input)
        files.append(File(path=name, **{key: record[key] for key in KEYS}))
    card = Card.create(
        input=input,
        label_names=tuple(map(str, range(sum(sizes)))),
        splits={"train": SplitCard(files=tuple(files), class_counts=(1,) * sum(sizes))},
        raw_columns={input.column: "array<float>"},
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
