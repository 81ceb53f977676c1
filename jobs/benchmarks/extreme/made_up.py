"""Made-up sparse data of any shape, the same every time.

Classes are drawn from a Zipf distribution. Half of a row's features come from the few that its classes prefer, the
other half from a Zipf distribution over all.
"""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from sparkdl.data import Dataset
from sparkdl.data.card import CARD_NAME, LABEL_COLUMN, LABELS_NAME, Card, InputSpec
from sparkdl.data.card_parts import LabelsFile, SparseCounts, SplitCard
from sparkdl.data.row_groups import file_name, write_row_groups_file
from sparkdl.data.sparse_rows import SPARSE_COUNTS, write_sparse_row_group

__all__ = ["ROWS_PER_GROUP", "Shape", "write_dataset"]

CORES = 2
ROWS_PER_GROUP = 8192
SEED = 0
OWN_FEATURES = 16
"""How many features a class prefers."""


@dataclass(frozen=True)
class Shape:
    """How large made-up data is."""

    rows: int
    """Of the split ``train``."""
    features: int
    classes: int
    draws: int = 32
    """Features of a row, those that are drawn twice included."""
    labels: int = 1
    """Classes of a row, those that are drawn twice included."""
    test_rows: int = 0
    """Of the split ``test``; without any, there is none."""


def write_dataset(folder: Path, shape: Shape) -> Dataset:
    """Write a prepared dataset without Spark, the same bytes every time. Runs on the driver."""
    spec = InputSpec(column="features", kind="sparse", shape=(shape.features,), dtype="float32")
    folder.mkdir(parents=True)
    labels = _write_labels(folder, shape)
    places = {"train": slice(0, shape.rows), "test": slice(shape.rows, shape.rows + shape.test_rows)}
    splits, groups = {}, {}
    for split, place in places.items():
        if place.stop > place.start:
            splits[split], groups[split] = _write_split(folder, split, shape, place, spec, labels)
    card = Card.create(
        input=spec,
        label_names=(),
        labels=labels,
        splits=splits,
        row_groups=write_row_groups_file(str(folder), groups),
        raw_columns={},
        preprocessing=False,
        settings={},
        source=f"made up: {shape}",
    )
    (folder / CARD_NAME).write_text(card.to_json())
    return Dataset.open(str(folder))


def _write_labels(folder: Path, shape: Shape) -> LabelsFile:
    classes, kept = _labels_of_rows(shape)
    counts = np.bincount(classes[: shape.rows][kept[: shape.rows]], minlength=shape.classes)
    names = pa.array(np.arange(shape.classes)).cast(pa.string())
    content = BytesIO()
    pq.write_table(pa.table({"name": names, "count": counts}), content)
    written = content.getvalue()
    (folder / LABELS_NAME).write_bytes(written)
    return LabelsFile(classes=shape.classes, bytes=len(written), sha256=hashlib.sha256(written).hexdigest())


def _write_split(
    folder: Path, split: str, shape: Shape, place: slice, spec: InputSpec, labels: LabelsFile
) -> tuple[SplitCard, pa.Table]:
    (folder / split).mkdir()
    number = max(round((place.stop - place.start) / ROWS_PER_GROUP), 1)
    ends = np.linspace(place.start, place.stop, number + 1).astype(np.int64)
    write = partial(_write_group, str(folder), split, shape, spec, labels, ends)
    with ThreadPoolExecutor(CORES) as pool:
        found = list(pool.map(write, range(number)))
    counts = np.sum([record["counts"] for record in found], axis=0)
    card = SplitCard(
        num_rows=place.stop - place.start,
        num_groups=number,
        class_counts=(),
        sparse=SparseCounts(**dict(zip(SPARSE_COUNTS, map(int, counts), strict=True))),
    )
    return card, pa.Table.from_pylist(found)


def _write_group(
    folder: str,
    split: str,
    shape: Shape,
    spec: InputSpec,
    labels: LabelsFile,
    ends: npt.NDArray[np.int64],
    group: int,
) -> dict[str, Any]:
    """One row group, and what the card has to know about it."""
    table = _rows(shape, slice(ends[group], ends[group + 1]))
    return write_sparse_row_group(f"{folder}/{split}/{file_name(group)}", table, spec, labels, folder)


@lru_cache(maxsize=1)
def _labels_of_rows(shape: Shape) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """The classes of each row in ascending order, and which of them are no repetition, both of shape (rows, labels).

    Every class occurs once if there are enough rows; the others are drawn from a Zipf distribution. The number of a
    class says nothing of its frequency.
    """
    random = np.random.default_rng(SEED)
    rows = shape.rows + shape.test_rows
    once = np.arange(min(shape.classes, rows * shape.labels))
    drawn = _zipf(shape.classes, rows * shape.labels - len(once), random)
    drawn = random.permutation(np.concatenate([once, drawn])).reshape(rows, shape.labels)
    classes = np.sort(random.permutation(shape.classes)[drawn], axis=1)
    return classes, np.diff(classes, axis=1, prepend=-1) > 0


def _rows(shape: Shape, place: slice) -> pa.Table:
    """Rows as Spark has them: a vector each, and a list of labels."""
    random = np.random.default_rng([SEED, place.start])
    classes, labelled = _labels_of_rows(shape)
    classes, labelled = classes[place], labelled[place]
    size = (len(classes), shape.draws)
    of_draw = np.take_along_axis(classes, random.integers(shape.labels, size=size), axis=1)
    own = (of_draw * OWN_FEATURES + random.integers(OWN_FEATURES, size=size)) * 2_654_435_761 % shape.features
    features = np.sort(np.where(random.random(size) < 0.5, own, _zipf(shape.features, size, random)), axis=1)
    kept = np.diff(features, axis=1, prepend=-1) > 0
    values = random.uniform(0.5, 1.5, size) * kept
    values /= np.linalg.norm(values, axis=1, keepdims=True)
    ends = _ends(kept)
    columns = {
        "type": pa.array(np.zeros(len(classes), np.int8)),
        "size": pa.array(np.full(len(classes), shape.features, np.int32)),
        "indices": pa.ListArray.from_arrays(ends, pa.array(features[kept].astype(np.int32))),
        "values": pa.ListArray.from_arrays(ends, pa.array(values[kept])),
    }
    vectors = pa.StructArray.from_arrays(list(columns.values()), names=list(columns))
    names = pa.ListArray.from_arrays(_ends(labelled), pa.array(classes[labelled]).cast(pa.string()))
    return pa.table({"features": vectors, LABEL_COLUMN: names})


def _ends(kept: npt.NDArray[np.bool_]) -> pa.Array:
    """Where each row's kept entries end, with a zero before them."""
    return pa.array(np.concatenate([[0], kept.sum(1).cumsum()]).astype(np.int32))


def _zipf(number: int, size: int | tuple[int, int], random: np.random.Generator) -> npt.NDArray[np.int64]:
    """Draws from 0 to ``number`` - 1, n about as often as 1 / (n + 1)."""
    return ((number + 1) ** random.random(size)).astype(np.int64) - 1
