"""``jobs/benchmark.py extreme``: one table after another, all measured in one run."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.extreme import odp, prior, quality, scoring, slots
from benchmarks.extreme.task import prepared_task
from benchmarks.images import session
from benchmarks.report import Report

__all__ = ["run"]


def run(data: Sequence[str] = ()) -> Iterator[Report]:
    """Measure on WordNet, or on ``data``: a training and a test file in the Extreme Classification Repository's format.

    Runs on the driver. Without ``data``, a table on made-up data of ODP's shape comes last.
    """
    with TemporaryDirectory(prefix="sparkdl-extreme-") as scratch:
        folder = Path(scratch)
        with session() as spark:
            task = prepared_task(data, folder, spark)
            ours, model = quality.train_ours(task, folder, spark)
        yield quality.compare(task, ours, folder)
        yield slots.run(task, folder)
        yield scoring.run(task, model, folder)
        yield prior.run(task, model, folder)
        if not data:
            with session() as spark:
                yield odp.run(folder, spark)
