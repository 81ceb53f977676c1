"""Small runs of the real loop: three ranks as local processes."""

import numpy as np
import pyarrow as pa
import pytest

from sparkdl.data import Dataset
from sparkdl.data.card import LABEL_COLUMN, Card, File, InputSpec, SplitCard
from sparkdl.data.write import write_row_group

CLASSES = 4
INPUT = InputSpec(column="features", kind="vector", shape=(CLASSES,), dtype="float32")


@pytest.fixture(scope="session")
def clouds(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Four overlapping clouds of points: 106 rows to train on and 30 to validate with."""
    folder = tmp_path_factory.mktemp("clouds") / "dataset"
    random = np.random.default_rng(0)
    splits = {}
    for split, sizes in {"train": [27, 27, 26, 26], "validation": [15, 15]}.items():
        (folder / split).mkdir(parents=True)
        files = []
        for number, rows in enumerate(sizes):
            labels = random.integers(0, CLASSES, rows)
            points = (random.normal(size=(rows, CLASSES)) + 2 * np.eye(CLASSES)[labels]).astype(np.float32)
            column = pa.array(list(points), pa.list_(pa.float32()))
            name = f"{split}/part-{number}.parquet"
            record = write_row_group(str(folder / name), pa.table({"features": column, LABEL_COLUMN: labels}), INPUT)
            keys = "rows", "bytes", "sha256", "crc32", "inputs_at", "labels_at"
            files.append(File(path=name, **{key: record[key] for key in keys}))
        splits[split] = SplitCard(files=tuple(files), class_counts=(sum(sizes), 0, 0, 0))
    card = Card.create(
        input=INPUT,
        label_names=tuple(map(str, range(CLASSES))),
        splits=splits,
        raw_columns={"features": "array<float>"},
        preprocessing=False,
        settings={"seed": 0},
        source="3-abc",
    )
    (folder / "card.json").write_text(card.to_json())
    return Dataset.open(str(folder))
