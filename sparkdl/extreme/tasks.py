"""Packs of work as independent Spark tasks: no shuffle, no barrier, and no weights sent anywhere."""

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from statistics import median
from uuid import uuid4

import pyarrow as pa
import torch
from pyspark import TaskContext
from pyspark.sql import SparkSession

from sparkdl.cluster import device_of_task, limited_threads, retained_memory
from sparkdl.data import Dataset
from sparkdl.extreme.fit import Epoch, choose_buckets, fit
from sparkdl.extreme.hashing import Buckets, BucketTable
from sparkdl.extreme.repetitions import BUCKETS, save_repetition
from sparkdl.sessions import cancel_tagged, tagged_jobs
from sparkdl.settings import Extreme

__all__ = ["Pack", "run_tasks", "train_pack"]

Pack = tuple[int, ...]
"""The numbers of what shares a task: of repetitions, say."""
POLL_SECONDS = 0.3


def run_tasks(
    work: Callable[[Pack], list[str]], packs: Sequence[Pack], spark: SparkSession, *, name: str
) -> Generator[tuple[Pack, list[str] | Exception], None, None]:
    """What became of each pack, in the order in which they end: the lines that ``work`` gives. Runs on the driver.

    Each is a job of one task, so that it is retried, comes home, and fails, by itself; an exception is what Spark gave
    up with. Closing the generator cancels those that still run.
    """
    tag = f"sparkdl-extreme-{uuid4().hex}"

    def run(pack: Pack) -> list[str]:
        def in_task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for _ in batches:  # drained, so that Spark keeps this Python worker for the next task
                pass
            yield pa.RecordBatch.from_pydict({"line": pa.array(work(pack), pa.string())})

        with tagged_jobs(spark, tag, f"{name} {', '.join(map(str, pack))}"):
            rows = spark.range(1, numPartitions=1).mapInArrow(in_task, "line string").collect()
        return [row[0] for row in rows]

    with ThreadPoolExecutor(max_workers=max(len(packs), 1)) as pool:
        futures = {pool.submit(run, pack): pack for pack in packs}
        try:
            for future in as_completed(futures):
                error = future.exception()
                if error is not None and not isinstance(error, Exception):
                    raise error
                yield futures[future], error or future.result()
        except BaseException:
            while wait(futures, timeout=POLL_SECONDS).not_done:  # a job about to be submitted is not cancelled yet
                cancel_tagged(spark, tag)
            raise


def train_pack(dataset: Dataset, settings: Extreme, made_of: str, pack: Pack) -> list[str]:
    """Train some repetitions and put them where the driver finds them; their records. Runs in a task."""
    context = TaskContext.get()
    device = device_of_task(context) if context else "cpu"
    threads = context.cpus() if context else 1
    losses: list[list[float]] = [[] for _ in pack]
    rates: list[float] = []

    def note(_: int, epochs: list[Epoch]) -> None:
        rates.append(epochs[0].rows_per_second)
        for history, epoch in zip(losses, epochs, strict=True):
            history.append(epoch.loss)

    started = time.perf_counter()
    with limited_threads(threads), retained_memory():
        buckets = choose_buckets(dataset, settings, pack)
        models = fit(dataset, settings, buckets, device=device, on_epoch=note)
    seconds = time.perf_counter() - started
    return [
        save_repetition(
            settings.run_dir,
            repetition,
            models.state_of(place) | _table_of(buckets[repetition]),
            made_of=made_of,
            losses=losses[place],
            rate=median(rates),
            seconds=seconds,
        ).to_json()
        for place, repetition in enumerate(pack)
    ]


def _table_of(buckets: Buckets) -> dict[str, torch.Tensor]:
    return {BUCKETS: torch.from_numpy(buckets.of_classes)} if isinstance(buckets, BucketTable) else {}
