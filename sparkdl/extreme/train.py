"""Repetitions as independent Spark tasks: no shuffle, no barrier, and no weights sent anywhere."""

import hashlib
import json
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession
from tqdm.auto import tqdm

from sparkdl.cluster import device_of_task, get_session, limited_threads, retained_memory
from sparkdl.data import Dataset
from sparkdl.errors import ConfigError, DatasetError
from sparkdl.extreme.ensemble import Ensemble
from sparkdl.extreme.fit import Epoch, fit
from sparkdl.extreme.metrics import Evaluation
from sparkdl.extreme.store import Finished, finished, save_repetition
from sparkdl.settings import Cluster, Extreme, Tracking
from sparkdl.tracking import Run, start_run
from sparkdl.tracking.figures import precision_curve

__all__ = ["TrainedEnsemble", "train_extreme"]

Pack = tuple[int, ...]


@dataclass(frozen=True)
class TrainedEnsemble:
    """What :func:`train_extreme` returns."""

    run_id: str
    """The MLflow run; one below it for each repetition that it trained."""
    folder: str
    """Where the repetitions are."""
    repetitions: tuple[Finished, ...]
    evaluations: dict[str, Evaluation]
    """The whole ensemble on every split but ``train``."""
    seconds: float
    """Training of what was missing, from the first task's start to the last one's end."""


def train_extreme(
    dataset: Dataset | str | None = None,
    settings: Extreme | None = None,
    *,
    cluster: Cluster | None = None,
    tracking: Tracking | None = None,
    spark: SparkSession | None = None,
) -> TrainedEnsemble:
    """Train the meta-models of all repetitions, each pack of them in an ordinary Spark task, and evaluate the ensemble.

    Runs on the driver. ``dataset`` is a sparse one, or its folder; by default ``settings.dataset``. Repetitions that an
    earlier run finished with the same settings are not trained again; one whose file was altered is. A failed task is
    retried by Spark, alone.

    Raises :class:`~sparkdl.errors.DatasetError` for a dataset that is not sparse and
    :class:`~sparkdl.errors.ConfigError` for fewer than two classes; warns where there are no more classes than buckets.
    """
    settings, cluster, tracking = settings or Extreme(), cluster or Cluster(), tracking or Tracking()
    dataset = _checked(dataset or settings.dataset, settings)
    folder, made_of = Path(settings.run_dir), _digest(dataset, settings)
    kept = (finished(folder, repetition, made_of=made_of) for repetition in range(settings.repetitions))
    records = {record.repetition: record for record in kept if record is not None}
    missing = [repetition for repetition in range(settings.repetitions) if repetition not in records]
    size = settings.repetitions_per_task
    packs = [tuple(missing[start : start + size]) for start in range(0, len(missing), size)]
    spark = spark or get_session(cluster)
    sections = {"extreme": settings, "cluster": cluster, "tracking": tracking}
    params = {"dataset": dataset.path} | {name: section.model_dump() for name, section in sections.items()}
    with start_run(tracking, params=params) as run:
        run.log_dataset(
            name=Path(dataset.path).name, digest=dataset.digest, source=dataset.path, card=dataset.card_json
        )
        started = time.perf_counter()
        if packs:
            train = partial(_train_pack, dataset, settings, str(folder), made_of)
            with tqdm(total=settings.repetitions, initial=len(records), unit="repetition", disable=None) as bar:
                for found in _run_tasks(train, packs, spark):
                    bar.update(len(found))
                    for record in found:
                        records[record.repetition] = record
                        _log_repetition(run, record, settings)
        seconds = time.perf_counter() - started
        evaluations = _evaluate(Ensemble(folder, dataset, settings, range(settings.repetitions)), dataset, run)
    repetitions = tuple(records[number] for number in sorted(records))
    return TrainedEnsemble(run.run_id, str(folder), repetitions, evaluations, seconds)


def _log_repetition(run: Run, record: Finished, settings: Extreme) -> None:
    """A child run: its loss curve, time, rows per second, executor and seed."""
    figures = {"rows_per_second": record.rows_per_second, "seconds": record.seconds}
    history = [{"loss": loss} for loss in record.losses]
    history[-1] |= figures
    run.log_child(
        f"repetition {record.repetition}",
        params={"repetition": record.repetition, "seed": settings.seed},
        history=history,
        tags={"host": record.host, "sha256": record.sha256},
    )


def _evaluate(ensemble: Ensemble, dataset: Dataset, run: Run) -> dict[str, Evaluation]:
    """The whole ensemble on every split but ``train``, and a picture of how much each repetition adds."""
    whole = len(ensemble.repetitions)
    numbers = [2**power for power in range(whole.bit_length()) if 2**power < whole] + [whole]
    evaluations = {}
    for split in dataset.splits:
        if split == "train":
            continue
        found = ensemble.evaluate(split, repetitions=numbers)
        evaluations[split] = found[whole]
        for number in numbers:
            precision = found[number].precision
            figures = {f"{split}_precision_at_{k}": precision[k - 1] for k in (1, 3, 5) if k <= len(precision)}
            run.log_metrics(figures, step=number)
        run.log_metrics({f"{split}_{name}": value for name, value in found[whole].as_metrics().items()}, step=whole)
        run.log_figure(
            precision_curve({number: found[number].precision.tolist() for number in numbers}),
            f"precision_{split}.png",
        )
    return evaluations


def _checked(dataset: Dataset | str | None, settings: Extreme) -> Dataset:
    if dataset is None:
        raise ConfigError("there is nothing to train on: give a dataset, or set extreme.dataset or prepare.output")
    dataset = dataset if isinstance(dataset, Dataset) else Dataset.open(dataset)
    if dataset.input.kind != "sparse":
        raise DatasetError(f"{dataset.path} is not sparse; prepare it with `prepare.sparse: true`")
    if dataset.num_classes < 2:
        raise ConfigError(f"{dataset.path} has a single class; there is nothing to tell apart")
    if settings.buckets >= dataset.num_classes:
        warnings.warn(
            f"extreme.buckets is {settings.buckets} for {dataset.num_classes} classes: hashing buys nothing here; "
            "lower it, or train one classifier over the classes (sparkdl train)",
            stacklevel=3,
        )
    return dataset


def _digest(dataset: Dataset, settings: Extreme) -> str:
    """What decides the weights of a repetition; the number of repetitions does not, their packing only rounds."""
    decisive = settings.model_dump(mode="json", exclude={"dataset", "run_dir", "repetitions", "repetitions_per_task"})
    return hashlib.sha256(json.dumps([dataset.digest, decisive], sort_keys=True).encode()).hexdigest()


def _run_tasks(
    train: Callable[[Pack], list[Finished]], packs: Sequence[Pack], spark: SparkSession
) -> Iterator[list[Finished]]:
    """One Spark job for each pack, so that each comes home, and fails, by itself; in the order in which they finish."""
    context = spark.sparkContext
    group = f"sparkdl-extreme-{uuid4().hex}"

    def run(pack: Pack) -> list[Finished]:
        def in_task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for _ in batches:  # drained, so that Spark keeps this Python worker for the next task
                pass
            yield pa.RecordBatch.from_pydict({"record": [record.to_json() for record in train(pack)]})

        context.setJobGroup(group, f"repetitions {', '.join(map(str, pack))}", interruptOnCancel=True)
        rows = spark.range(1, numPartitions=1).mapInArrow(in_task, "record string").collect()
        return [Finished.from_json(row[0]) for row in rows]

    with ThreadPoolExecutor(max_workers=len(packs)) as pool:
        futures = [pool.submit(run, pack) for pack in packs]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BaseException:
            context.cancelJobGroup(group)
            raise


def _train_pack(dataset: Dataset, settings: Extreme, folder: str, made_of: str, pack: Pack) -> list[Finished]:
    """Train some repetitions and put them where the driver finds them. Runs in a task."""
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
        models = fit(dataset, settings, pack, device=device, on_epoch=note)
    seconds = time.perf_counter() - started
    return [
        save_repetition(
            Path(folder),
            repetition,
            models.state_of(place),
            made_of=made_of,
            losses=losses[place],
            rate=median(rates),
            seconds=seconds,
        )
        for place, repetition in enumerate(pack)
    ]
