"""Runs work in independent Spark tasks, without barrier or shuffle: each is retried, returns and fails by itself.

Each task is a Spark job of its own. Spark runs as many at a time as it has slots, in the order of submission. This
suits clusters whose executors come and go.
"""

import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, as_completed, wait
from types import TracebackType
from typing import Any, Self, TypeVar
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import SparkSession

from sparkdl.cluster.resources import profile_of
from sparkdl.sessions import cancel_tagged, tagged_jobs
from sparkdl.settings import Resources

__all__ = ["IndependentTasks", "run_tasks"]

Piece = TypeVar("Piece")
POLL_SECONDS = 0.3


class IndependentTasks:
    """Spark tasks that end independently. Runs on the driver. Leaving the context cancels tasks that still run."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._tags: dict[Future[list[str]], str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel(*self._tags)

    def submit(
        self, work: Callable[[], list[str]], *, description: str, resources: Resources | None = None
    ) -> Future[list[str]]:
        """Run ``work`` in a task with these resources. The future has its lines, or Spark's last error."""
        future: Future[list[str]] = Future()
        tag = self._tags[future] = f"sparkdl-{uuid4().hex}"

        def run() -> None:
            try:
                profile: dict[str, Any] = {"profile": profile_of(resources, self._spark)} if resources else {}
                frame = self._spark.range(1, numPartitions=1).mapInArrow(_task(work), "line string", **profile)
                with tagged_jobs(self._spark, tag, description):
                    rows = frame.collect()
                future.set_result([row[0] for row in rows])
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=run, name="sparkdl-task", daemon=True).start()
        return future

    def cancel(self, *futures: Future[list[str]]) -> None:
        """Cancel the tasks that have not ended, and wait for them."""
        while running := [future for future in futures if not future.done()]:
            for future in running:  # repeatedly, because cancelling misses a job that is about to be submitted
                cancel_tagged(self._spark, self._tags[future])
            wait(running, timeout=POLL_SECONDS)


def _task(work: Callable[[], list[str]]) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:  # read to the end, so that Spark reuses this Python worker
            pass
        yield pa.RecordBatch.from_pydict({"line": pa.array(work(), pa.string())})

    return task


def run_tasks(
    work: Callable[[Piece], list[str]], parts: Sequence[Piece], spark: SparkSession, *, name: str
) -> Generator[tuple[Piece, list[str] | Exception], None, None]:
    """Run ``work`` for each part in a Spark task, and yield each part with its result as soon as it has ended.

    A result is the lines that ``work`` returned, or Spark's error after all retries. Runs on the driver. Closing the
    generator cancels tasks that still run.
    """
    with IndependentTasks(spark) as tasks:
        futures = {tasks.submit(_bound(work, part), description=f"{name} {_told(part)}"): part for part in parts}
        for future in as_completed(futures):
            error = future.exception()
            if error is not None and not isinstance(error, Exception):
                raise error
            yield futures[future], error or future.result()


def _bound(work: Callable[[Piece], list[str]], part: Piece) -> Callable[[], list[str]]:
    return lambda: work(part)


def _told(part: object) -> str:
    return ", ".join(map(str, part)) if isinstance(part, tuple) else str(part)
