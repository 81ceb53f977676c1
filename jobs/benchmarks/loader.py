"""Shuffled batches from a prepared dataset beside Petastorm's BatchedDataLoader and a plain pyarrow read of its files.

They read the same files in the same process and take turns; each run reads every row of the split once.
"""

import gc
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import sparkdl
from benchmarks.images import session
from benchmarks.report import Report, Target
from sparkdl.data import Loader

__all__ = ["run"]

ROWS = 60_000
WIDTH = 784
"""Values a row: the size of Fashion-MNIST."""
BATCH_SIZE = 256
ROUNDS = 7
WORKERS = 2
"""Threads of Petastorm's reader: two were faster than one and than its process pool."""
WARM_UP_EPOCH = 0
LIMITS = {"BatchedDataLoader": 4.0, "pyarrow": 0.8}
"""How many times as fast as each rival it has to be."""
PARTITIONS = 2

Reading = Callable[[sparkdl.Dataset, int], int]


def run() -> Report:
    """Prepare two datasets of random rows, one of uint8 images, one of float32 vectors, and read both all three ways.

    Runs on the driver, on this machine's page cache.
    """
    rows: list[list[str | float]] = []
    targets: list[Target] = []
    with session() as spark, tempfile.TemporaryDirectory() as scratch:
        for kind, raw in {"uint8 images": _images(spark), "float32 vectors": _vectors(spark)}.items():
            dataset = sparkdl.prepare(raw, _settings(raw, str(Path(scratch) / kind.split()[1])))
            rates = _measure(dataset)
            medians = {name: median(values) for name, values in rates.items()}
            rows += [[kind, name, rate, rate / medians["pyarrow"]] for name, rate in medians.items()]
            for rival in (name for name in rates if name in LIMITS):
                ratio = median(a / b for a, b in zip(rates["sparkdl"], rates[rival], strict=True))
                targets.append(Target(f"{kind}, rows/s over {rival}'s", ratio, LIMITS[rival]))
    return Report(
        title=f"loader: rows of {WIDTH} values, one rank",
        columns=["rows", "reader", "rows/s", "of pyarrow"],
        rows=rows,
        targets=targets,
        note=f"Medians of {ROUNDS} epochs of {ROWS:,} rows, taken in turn; ratios are medians of the rounds'. Both"
        f" loaders make shuffled batches of {BATCH_SIZE}; pyarrow only reads the files, in order.",
    )


def ours(dataset: sparkdl.Dataset, epoch: int) -> int:
    """An epoch of our loader: shuffled, as tensors; each file was verified in the first, which is not counted."""
    return sum(len(batch.labels) for batch in Loader(dataset, "train", batch_size=BATCH_SIZE).epoch(epoch))


def petastorm(dataset: sparkdl.Dataset, epoch: int) -> int:
    """An epoch of Petastorm's fastest loader: columnar batches, shuffled in memory, as tensors."""
    from petastorm import TransformSpec, make_batch_reader
    from petastorm.pytorch import BatchedDataLoader

    # A tensor cannot hold bytes, so images become arrays in the reader's threads, as Petastorm's examples do.
    field = (dataset.input.column, np.uint8, (WIDTH,), False)
    transform = TransformSpec(_as_arrays, edit_fields=[field]) if dataset.input.kind == "image" else None
    reader = make_batch_reader(
        Path(dataset.path, "train").as_uri(),
        num_epochs=1,
        workers_count=WORKERS,
        shuffle_row_groups=True,
        seed=epoch,
        transform_spec=transform,
    )
    shuffled = 2 * max(group.rows for group in dataset.row_groups("train"))
    with BatchedDataLoader(reader, batch_size=BATCH_SIZE, shuffling_queue_capacity=shuffled) as loader:
        return sum(len(batch["label"]) for batch in loader)


def pyarrow(dataset: sparkdl.Dataset, epoch: int) -> int:
    """Every file as an Arrow table, with pyarrow's own threads: no order, no tensors, no batches."""
    return sum(pq.read_table(group.path).num_rows for group in dataset.row_groups("train"))


def _as_arrays(frame: Any) -> Any:
    frame["image"] = list(np.frombuffer(b"".join(frame["image"]), np.uint8).reshape(len(frame), WIDTH))
    return frame


def _measure(dataset: sparkdl.Dataset) -> dict[str, list[float]]:
    readings: dict[str, Reading] = {"sparkdl": ours, "BatchedDataLoader": petastorm, "pyarrow": pyarrow}
    if find_spec("petastorm") is None:  # on the current stack
        del readings["BatchedDataLoader"]
    rates: dict[str, list[float]] = {name: [] for name in readings}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for epoch in range(ROUNDS + 1):
            for name, read in readings.items():
                gc.collect()
                started = time.perf_counter()
                rows = read(dataset, epoch)
                seconds = time.perf_counter() - started
                if rows != ROWS:
                    raise RuntimeError(f"{name} read {rows:,} rows of {ROWS:,}; the comparison would be worthless")
                if epoch != WARM_UP_EPOCH:
                    rates[name].append(rows / seconds)
    return rates


def _settings(raw: DataFrame, output: str) -> sparkdl.Prepare:
    image = {"image": "image", "image_shape": [28, 28]} if "image" in raw.columns else {}
    return sparkdl.Prepare.model_validate(
        {"output": output, "split": sparkdl.Split(fractions={}), "num_ranks": 1, **image}
    )


def _images(spark: SparkSession) -> DataFrame:
    return spark.range(ROWS, numPartitions=PARTITIONS).mapInArrow(
        partial(_random_rows, np.uint8), "image binary, label bigint"
    )


def _vectors(spark: SparkSession) -> DataFrame:
    return spark.range(ROWS, numPartitions=PARTITIONS).mapInArrow(
        partial(_random_rows, np.float32), "features array<float>, label bigint"
    )


def _random_rows(dtype: type, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Random rows, the same whenever they are asked for; their number modulo 10 is the label."""
    for batch in batches:
        ids = batch.column(0).to_numpy()
        random = np.random.default_rng(int(ids[0]))
        if dtype is np.uint8:
            pixels = random.integers(0, 256, (len(ids), WIDTH), np.uint8)
            inputs = pa.array([row.tobytes() for row in pixels], pa.binary())
        else:
            values = random.standard_normal(len(ids) * WIDTH, np.float32)
            inputs = pa.FixedSizeListArray.from_arrays(pa.array(values), WIDTH).cast(pa.list_(pa.float32()))
        name = "image" if dtype is np.uint8 else "features"
        yield pa.RecordBatch.from_arrays([inputs, pa.array(ids % 10)], names=[name, "label"])
