"""Trains the repetitions that no earlier run has finished, in Spark tasks. Runs on the driver."""

import logging
from contextlib import closing
from functools import partial

from pyspark.sql import SparkSession
from tqdm.auto import tqdm

from sparkdl.cluster import run_tasks, spark_reason
from sparkdl.data import Dataset
from sparkdl.errors import TrainingError
from sparkdl.extreme.repetitions import Finished, finished
from sparkdl.extreme.tasks import Pack, train_pack
from sparkdl.settings import Extreme
from sparkdl.tracking import Run

__all__ = ["train_missing"]

log = logging.getLogger(__name__)


def train_missing(dataset: Dataset, settings: Extreme, made_of: str, spark: SparkSession, run: Run) -> list[Finished]:
    """Train what is missing; returns the records of all repetitions, or of enough of them, in order.

    Each one that is trained gets a child run. Raises :class:`~sparkdl.errors.TrainingError` where Spark has given up on
    so many that fewer than ``settings.minimum_repetitions`` are left.
    """
    kept = (finished(settings.run_dir, repetition, made_of=made_of) for repetition in range(settings.repetitions))
    records = {record.repetition: record for record in kept if record is not None}
    missing = [repetition for repetition in range(settings.repetitions) if repetition not in records]
    size = settings.repetitions_per_task
    packs = [tuple(missing[start : start + size]) for start in range(0, len(missing), size)]
    lost: dict[Pack, str] = {}
    train = partial(train_pack, dataset, settings, made_of)
    bar = tqdm(total=settings.repetitions, initial=len(records), unit="repetition", disable=None)
    with bar, closing(run_tasks(train, packs, spark, name="repetitions")) as ended:
        for pack, found in ended:
            if isinstance(found, Exception):
                lost[pack] = spark_reason(found)
                log.warning("repetitions %s are lost: %s", _listed(pack), lost[pack].splitlines()[-1])
                continue
            bar.update(len(found))
            for record in map(Finished.from_json, found):
                records[record.repetition] = record
                _log_repetition(run, record, settings)
    if len(records) < (settings.minimum_repetitions or settings.repetitions):
        raise TrainingError(_too_few(len(records), settings, lost))
    return [records[number] for number in sorted(records)]


def _too_few(found: int, settings: Extreme, lost: dict[Pack, str]) -> str:
    numbers = _listed(sorted(number for pack in lost for number in pack))
    way_out = f", or set extreme.minimum_repetitions to {found} to do without them" if found else ""
    return (
        f"Spark gave up on repetitions {numbers}; {found} of {settings.repetitions} are finished and kept in "
        f"{settings.run_dir}. Start the job again to train only the others{way_out}. What went wrong first:\n\n"
        f"{next(iter(lost.values()))}"
    )


def _listed(numbers: Pack | list[int]) -> str:
    return ", ".join(map(str, numbers))


def _log_repetition(run: Run, record: Finished, settings: Extreme) -> None:
    """Log a child run: its loss curve, time, rows per second, executor and seed."""
    figures = {"rows_per_second": record.rows_per_second, "seconds": record.seconds}
    history = [{"loss": loss} for loss in record.losses]
    history[-1] |= figures
    run.log_child(
        f"repetition {record.repetition}",
        params={"repetition": record.repetition, "seed": settings.seed},
        history=history,
        tags={"host": record.host, "sha256": record.sha256},
    )
