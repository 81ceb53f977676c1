"""Made-up data of ODP's shape, and what a task that learns from it takes.

The Open Directory Project's pages by category, as MACH's authors used them (arXiv 1810.04254), have 105,033 classes and
421,705 features. Here classes are drawn from a Zipf distribution, and half of a row's features from its class's own
few, the other half from a Zipf distribution over all.
"""

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
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
from pyspark.sql import SparkSession

from sparkdl.benchmarks.extreme.processes import forget_peak, peak_bytes
from sparkdl.benchmarks.extreme.task import first_groups
from sparkdl.benchmarks.report import Report, Target
from sparkdl.cluster import limited_threads, retained_memory
from sparkdl.data import Dataset
from sparkdl.data.card import (
    CARD_NAME,
    LABEL_COLUMN,
    LABELS_NAME,
    Card,
    File,
    InputSpec,
    LabelsFile,
    SparseCounts,
    SplitCard,
)
from sparkdl.data.sparse_rows import SPARSE_COUNTS, write_sparse_row_group
from sparkdl.extreme.fit import Epoch, fit
from sparkdl.extreme.plan import plan_extreme
from sparkdl.settings import Extreme

__all__ = ["Shape", "run", "write_dataset"]

CORES = 2
EPOCHS = 10
SETTINGS = Extreme(buckets=32, repetitions=25, hidden=[], repetitions_per_task=7, epochs=1)
MEASURED = {7: 16, 1: 24}
"""Row groups that tasks of so many repetitions learn from while they are measured."""
ALLOWED_BYTES = 500e6
"""What a task may take beyond its share of the model."""
ROWS_PER_GROUP = 8192
SEED = 0
OWN_FEATURES = 16
"""How many features a class prefers."""


@dataclass(frozen=True)
class Shape:
    """How large made-up data is."""

    rows: int = 1_084_404
    features: int = 421_705
    classes: int = 105_033
    draws: int = 32
    """Features of a row, those that are drawn twice included."""


def run(folder: Path, spark: SparkSession) -> Report:
    """Write the data, then learn from some of it in two tasks at a time. Runs on the driver."""
    shape = Shape()
    dataset = write_dataset(folder / "odp", shape)
    settings = SETTINGS
    plan = plan_extreme(
        shape.classes,
        num_features=shape.features,
        rows=shape.rows,
        num_buckets=settings.buckets,
        repetitions=settings.repetitions,
    )
    share = plan.mach.model_bytes / settings.repetitions
    rows: list[list[str | float]] = []
    targets = []
    for size, groups in MEASURED.items():
        packs = [range(size), range(size, min(2 * size, settings.repetitions))]
        found = _train_in_tasks(first_groups(dataset, groups), settings, packs, spark)
        rate, peak = min(rate for rate, _ in found), max(peak for _, peak in found)
        slots = CORES if size > 1 else settings.repetitions
        waves = math.ceil(settings.repetitions / (size * slots))
        projected = waves * EPOCHS * shape.rows / rate
        rows.append([f"{size}", f"{slots}", rate, peak / 1e6, size * share / 1e6, projected / 60])
        targets.append(
            Target(f"peak MB, {size} a task", peak / 1e6, (size * share + ALLOWED_BYTES) / 1e6, at_most=True)
        )
    (linear,) = plan.one_vs_all
    return Report(
        title=f"extreme, ODP's shape: {shape.rows:,} rows, {shape.features:,} features, {shape.classes:,} classes",
        columns=[
            "repetitions a task",
            "slots",
            "rows/s of a task",
            "peak MB of a task",
            "its share of the model, MB",
            f"{EPOCHS} epochs, projected min",
        ],
        rows=rows,
        targets=targets,
        note=(
            f"Linear, B = {plan.num_buckets}, R = {plan.repetitions}: {plan.mach.parameters / 1e6:,.0f} million "
            f"parameters ({plan.mach.model_bytes / 1e9:.3g} GB); one-vs-all has {linear.parameters / 1e9:,.1f} billion "
            f"({linear.model_bytes / 1e9:,.0f} GB). Two Spark tasks at a time, one thread each, on the first "
            f"{', '.join(f'{groups * ROWS_PER_GROUP:,}' for groups in MEASURED.values())} rows or so. Projections are "
            "rows times epochs over a task's rate, times the tasks that a slot runs after one another; those for 25 "
            "slots take memory and cores to be as free as here."
        ),
    )


def _train_in_tasks(
    dataset: Dataset, settings: Extreme, packs: Sequence[Sequence[int]], spark: SparkSession
) -> list[tuple[float, int]]:
    """Rows a second and peak memory of each pack's task; all run at the same time."""

    def train(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rates: list[float] = []

            def note(_: int, epochs: list[Epoch], rates: list[float] = rates) -> None:
                rates.append(epochs[0].rows_per_second)

            for (number,) in zip(batch.column(0).to_pylist(), strict=True):
                forget_peak()
                with limited_threads(1), retained_memory():
                    fit(dataset, settings, packs[number], on_epoch=note)
                yield pa.RecordBatch.from_pydict({"rate": rates[-1:], "peak": [peak_bytes()]})

    found = spark.range(len(packs), numPartitions=len(packs)).mapInArrow(train, "rate double, peak bigint").collect()
    return [(row.rate, row.peak) for row in found]


def write_dataset(folder: Path, shape: Shape) -> Dataset:
    """Write a prepared dataset without Spark, the same bytes every time. Runs on the driver."""
    (folder / "train").mkdir(parents=True)
    spec = InputSpec(column="features", kind="sparse", shape=(shape.features,), dtype="float32")
    labels = _write_labels(folder, shape)
    number = max(round(shape.rows / ROWS_PER_GROUP), 1)
    write = partial(_write_group, str(folder), shape, spec, labels, number)
    with ThreadPoolExecutor(CORES) as pool:
        found = list(pool.map(write, range(number)))
    counts = np.sum([record.pop("counts") for record in found], axis=0)
    card = Card.create(
        input=spec,
        label_names=(),
        labels=labels,
        splits={
            "train": SplitCard(
                files=tuple(File(**record) for record in found),
                class_counts=(),
                sparse=SparseCounts(**dict(zip(SPARSE_COUNTS, map(int, counts), strict=True))),
            )
        },
        raw_columns={},
        preprocessing=False,
        settings={},
        source=f"made up: {shape}",
    )
    (folder / CARD_NAME).write_text(card.to_json())
    return Dataset.open(str(folder))


def _write_labels(folder: Path, shape: Shape) -> LabelsFile:
    counts = np.bincount(_classes(shape), minlength=shape.classes)
    names = pa.array(np.arange(shape.classes)).cast(pa.string())
    content = BytesIO()
    pq.write_table(pa.table({"name": names, "count": counts}), content)
    written = content.getvalue()
    (folder / LABELS_NAME).write_bytes(written)
    return LabelsFile(classes=shape.classes, bytes=len(written), sha256=hashlib.sha256(written).hexdigest())


def _write_group(
    folder: str, shape: Shape, spec: InputSpec, labels: LabelsFile, number: int, group: int
) -> dict[str, Any]:
    """One row group, and what the card has to know about it."""
    ends = np.linspace(0, shape.rows, number + 1).astype(np.int64)
    table = _rows(shape, _classes(shape)[ends[group] : ends[group + 1]], np.random.default_rng([SEED, group]))
    name = f"train/part-{group:06d}.parquet"
    record = write_sparse_row_group(f"{folder}/{name}", table, spec, labels, folder)
    del record["unusable"]
    return {"path": name, **record}


@lru_cache(maxsize=1)
def _classes(shape: Shape) -> npt.NDArray[np.int64]:
    """The class of each row: every class once, and the others from a Zipf distribution."""
    random = np.random.default_rng(SEED)
    once = np.arange(min(shape.classes, shape.rows))
    return random.permutation(np.concatenate([once, _zipf(shape.classes, shape.rows - len(once), random)]))


def _rows(shape: Shape, classes: npt.NDArray[np.int64], random: np.random.Generator) -> pa.Table:
    """Rows as Spark has them: a vector each, and a list of one label."""
    size = (len(classes), shape.draws)
    own = (classes[:, None] * OWN_FEATURES + random.integers(OWN_FEATURES, size=size)) * 2_654_435_761 % shape.features
    features = np.sort(np.where(random.random(size) < 0.5, own, _zipf(shape.features, size, random)), axis=1)
    kept = np.diff(features, axis=1, prepend=-1) > 0
    values = random.uniform(0.5, 1.5, size) * kept
    values /= np.linalg.norm(values, axis=1, keepdims=True)
    ends = pa.array(np.concatenate([[0], kept.sum(1).cumsum()]).astype(np.int32))
    columns = {
        "type": pa.array(np.zeros(len(classes), np.int8)),
        "size": pa.array(np.full(len(classes), shape.features, np.int32)),
        "indices": pa.ListArray.from_arrays(ends, pa.array(features[kept].astype(np.int32))),
        "values": pa.ListArray.from_arrays(ends, pa.array(values[kept])),
    }
    vectors = pa.StructArray.from_arrays(list(columns.values()), names=list(columns))
    names = pa.ListArray.from_arrays(
        pa.array(np.arange(len(classes) + 1, dtype=np.int32)), pa.array(classes).cast(pa.string())
    )
    return pa.table({"features": vectors, LABEL_COLUMN: names})


def _zipf(number: int, size: int | tuple[int, int], random: np.random.Generator) -> npt.NDArray[np.int64]:
    """Draws from 0 to ``number`` - 1, n about as often as 1 / (n + 1)."""
    return ((number + 1) ** random.random(size)).astype(np.int64) - 1
