"""``jobs/benchmark.py extreme``: one table after another, all measured in one run."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.extreme import claims, odp, prior, quality, scoring, slots
from benchmarks.extreme.task import KINDS, prepared_task, task_of_files
from benchmarks.images import session
from benchmarks.report import Report

__all__ = ["run"]


def run(data: Sequence[str] = (), kinds: Sequence[str] = ()) -> Iterator[Report]:
    """Measure on the ``kinds`` of public data, by default all, or on ``data``: a training and a test file.

    These are in the Extreme Classification Repository's format. Runs on the driver. What hardly depends on the data is
    measured on WordNet, or on ``data``; the tables of MACH's own claims come without either.
    """
    with TemporaryDirectory(prefix="sparkdl-extreme-") as scratch:
        for kind in ["data"] if data else kinds or KINDS:
            folder = Path(scratch, kind)
            folder.mkdir()
            with session() as spark:
                task = task_of_files(data, folder, spark) if data else prepared_task(kind, folder, spark)
                ours, model, spent = quality.train_ours(task, folder, spark)
            yield quality.compare(task, ours, model, spent, folder)
            if kind not in ("wordnet", "data"):
                continue
            yield slots.run(task, folder)
            yield scoring.run(task, model, folder)
            yield prior.run(task, model, folder)
        if not data and not kinds:
            with session() as spark:
                yield odp.run(Path(scratch), spark)
            yield claims.run()
            yield claims.published_shapes()
