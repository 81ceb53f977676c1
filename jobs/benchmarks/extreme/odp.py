"""What a task takes that learns from made-up data of ODP's shape.

The Open Directory Project's pages by category, as MACH's authors used them (arXiv 1810.04254), have 105,033 classes and
421,705 features in 1,084,404 rows.
"""

import heapq
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

import sparkdl
from benchmarks.extreme.made_up import ROWS_PER_GROUP, Shape, write_dataset
from benchmarks.extreme.processes import forget_peak, peak_bytes
from benchmarks.extreme.task import first_groups
from benchmarks.report import Report, Target
from sparkdl.cluster import limited_threads, retained_memory
from sparkdl.extreme.fit import Epoch, choose_buckets, fit

__all__ = ["run"]

CORES = 2
EPOCHS = 10
SETTINGS = sparkdl.Extreme(buckets=32, repetitions=25, hidden=[], repetitions_per_task=7, epochs=1, hashing="random")
MEASURED = {7: 16, 1: 24}
"""Row groups that tasks of so many repetitions learn from while they are measured."""
ALLOWED_BYTES = 500e6
"""What a task may take beyond its share of the model."""
SHAPE = Shape(rows=1_084_404, features=421_705, classes=105_033)


def run(folder: Path, spark: SparkSession) -> Report:
    """Write the data, then learn from some of it in two tasks at a time. Runs on the driver."""
    shape = SHAPE
    dataset = write_dataset(folder / "odp", shape)
    settings = SETTINGS
    plan = sparkdl.plan_extreme(
        shape.classes,
        num_features=shape.features,
        rows=shape.rows,
        num_buckets=settings.buckets,
        repetitions=settings.repetitions,
        hidden=settings.hidden,
        ranked=False,
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
        seconds = [EPOCHS * shape.rows / rate for rate, _ in found]
        tasks = [seconds[number % len(seconds)] for number in range(math.ceil(settings.repetitions / size))]
        times = sum(tasks) / _makespan(tasks, slots)
        rows.append([f"{size}", f"{slots}", rate, peak / 1e6, size * share / 1e6, projected / 60, times])
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
            "times as fast as one slot",
        ],
        rows=rows,
        targets=targets,
        note=(
            f"Linear, B = {plan.num_buckets}, R = {plan.repetitions}: {plan.mach.parameters / 1e6:,.0f} million "
            f"parameters ({plan.mach.model_bytes / 1e9:.3g} GB); one-vs-all has {linear.parameters / 1e9:,.1f} billion "
            f"({linear.model_bytes / 1e9:,.0f} GB). Two Spark tasks at a time, one thread each, on the first "
            f"{', '.join(f'{groups * ROWS_PER_GROUP:,}' for groups in MEASURED.values())} rows or so. Projections are "
            "rows times epochs over a task's rate, times the tasks that a slot runs after one another; those for 25 "
            "slots, and the speed-up, take memory and cores to be as free as here."
        ),
    )


def _makespan(tasks: Sequence[float], slots: int) -> float:
    """Seconds until all tasks are done, each begun by the slot that is first free."""
    free = [0.0] * slots
    for seconds in tasks:
        heapq.heapreplace(free, free[0] + seconds)
    return max(free)


def _train_in_tasks(
    dataset: sparkdl.Dataset, settings: sparkdl.Extreme, packs: Sequence[Sequence[int]], spark: SparkSession
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
                    buckets = choose_buckets(dataset, settings, packs[number])
                    fit(dataset, settings, buckets, on_epoch=note)
                yield pa.RecordBatch.from_pydict({"rate": rates[-1:], "peak": [peak_bytes()]})

    found = spark.range(len(packs), numPartitions=len(packs)).mapInArrow(train, "rate double, peak bigint").collect()
    return [(row.rate, row.peak) for row in found]
