"""Trains a registered model on a dataset. Runs on the driver."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from sparkdl.cluster import exit_on_sigterm
from sparkdl.data import Dataset
from sparkdl.data.model_inputs import example_row, packages_for_inputs
from sparkdl.models import Reference, TracedNetwork
from sparkdl.settings import Cluster, Tracking, Train
from sparkdl.settings.strategies import AsynchronousOptions
from sparkdl.tracking import Registered, Run, start_run
from sparkdl.training.attempts import run_attempts
from sparkdl.training.best import seconds_to_target
from sparkdl.training.checkpoints.checkpoint import copy_checkpoint, load_manifest, save_weights
from sparkdl.training.checkpoints.checkpoint_folder import latest
from sparkdl.training.checkpoints.owner import Owner
from sparkdl.training.checkpoints.record import RunRecord, recipe_of
from sparkdl.training.checks.check import check
from sparkdl.training.job import Job, TrainingResult
from sparkdl.training.model_folder import write_model_folder
from sparkdl.training.reports.progress import Progress
from sparkdl.training.reports.stopwatch import RankTimes
from sparkdl.training.reports.verdict import ADVICE, WITH_SERVERS, Timeline, shares, verdict
from sparkdl.training.task_to_train import task_to_train
from sparkdl.training.tasks import Task

__all__ = ["TrainedModel", "train_from"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainedModel:
    """What :func:`sparkdl.train` returns."""

    run_id: str
    """The MLflow run."""
    metrics: dict[str, float]
    """``validation_loss``, ``test_accuracy`` and so on: the best checkpoint on every split but ``train``."""
    history: list[dict[str, float]]
    """One entry per epoch."""
    rows_per_second: float
    """Training rows of all ranks per second, over all epochs; evaluation and checkpoints are left out."""
    seconds_to_target: float | None
    """Time to accuracy: seconds of all epochs until ``train.target`` was reached, None if it was not."""
    verdict: str
    """The run's bottleneck, and what to change."""
    checkpoint: str
    """The best checkpoint."""
    model_uri: str
    """The logged model, ready for :func:`sparkdl.score`; the registered version when there is one."""
    registered: Registered | None
    """The version in the registry and whether the alias moved to it."""
    tracking: Tracking
    """The tracking store that has the model."""


def train_from(
    checkpoint: str | None,
    dataset: Dataset | str | None = None,
    settings: Train | None = None,
    *,
    cluster: Cluster | None = None,
    tracking: Tracking | None = None,
    spark: SparkSession | None = None,
    replicas: int | None = None,
    layout_plan: str = "",
) -> TrainedModel:
    """Train as :func:`sparkdl.train`, from a checkpoint of another run with the same dataset and recipe, if any.

    A new run resumes from a copy of it, up to ``settings.epochs``; if all epochs are complete, the best weights are
    evaluated and registered without training. ``replicas`` is the number that the learning rate and the batch size are
    meant for, by default that of the cluster; ``layout_plan`` is the table of layouts, for the run's page. Runs on the
    driver, and raises the errors of :func:`sparkdl.train`.
    """
    settings, cluster, tracking = settings or Train(), cluster or Cluster(), tracking or Tracking()
    checked = check(dataset, settings, cluster, tracking, spark)
    dataset, settings, backend, resumed = checked.dataset, checked.settings, checked.backend, checked.resumed
    sections = {"train": settings, "cluster": cluster, "tracking": tracking}
    params: dict[str, Any] = {name: section.model_dump() for name, section in sections.items()}
    params |= {**dataset.named, "backend": backend.name}
    with (
        exit_on_sigterm(),
        Owner(f"{settings.run_dir}/{resumed.run_id}" if resumed else None) as owner,
        start_run(tracking, params=params, resume=resumed.run_id if resumed else None) as run,
    ):
        folder = f"{settings.run_dir}/{run.run_id}"
        if not resumed:
            owner.claim(folder)
        reference = resumed.reference if resumed else replicas or cluster.replicas
        recipe = recipe_of(settings)
        record = RunRecord(
            run.run_id, dataset.digest, recipe, reference, settings.epochs, parts=checked.parts, begun=time.time()
        )
        record.save(folder)
        start = None
        if checkpoint and not resumed:
            copy_checkpoint(checkpoint, folder)
        if not resumed:
            run.log_dataset(
                name=Path(dataset.path).name, digest=dataset.digest, source=dataset.path, card=dataset.card_json
            )
        if layout_plan:
            run.log_text(layout_plan, "layout.txt")
        if checked.start:
            start = f"{folder}/start.pt"
            save_weights(start, checked.start)
        with _how_to_resume(run.run_id):
            if checked.teacher:
                dataset = checked.teacher.answered(dataset, checked.spark)
            job = Job(dataset, settings, folder, backend, record.reference, start, plan=checked.plan)
            outcome, times = _run(job, cluster, checked.spark, run, owner)
            owner.check()
            trained = _finish(job, outcome, times, run, tracking, checked.traced)
        replace(record, finished=True).save(folder)
        return trained


@contextmanager
def _how_to_resume(run_id: str) -> Iterator[None]:
    """Log how to resume a run that ends early, without a look at storage, which may be what failed."""
    try:
        yield
    except BaseException:
        log.warning("run %s can be continued from its last checkpoint, if it has one: train.resume=%s", run_id, run_id)
        raise


def _run(
    job: Job, cluster: Cluster, spark: SparkSession, run: Run, owner: Owner
) -> tuple[TrainingResult, list[list[RankTimes]]]:
    """Run all attempts; the ranks' messages become the progress bar, the run's metrics and its trace.

    Returns rank 0's result, and how ranks have spent their epochs.
    """
    times: list[list[RankTimes]] = []
    task = task_to_train(job.dataset.card, job.settings)
    with Progress(task.step_figure) as progress, _recorded(run) as timeline:

        def receive(rank: int, message: dict[str, Any]) -> None:
            owner.check()
            match message:
                case {"kind": "epoch_started", **started}:
                    progress.epoch_started(**started)
                case {"kind": "steps", "steps": steps, "rows": rows}:
                    progress.steps(steps=steps, rows=rows)
                    _log_steps(run, task, steps)
                case {"kind": "epoch", "epoch": epoch, "figures": figures}:
                    progress.epoch(epoch=epoch, figures=figures)
                    run.log_metrics(figures, step=epoch + 1)
                case {"kind": "times", "epoch": epoch, "times": of_ranks}:
                    times.append([RankTimes(*each) for each in of_ranks])
                    run.log_metrics(shares(times[-1]), step=epoch + 1)
                case {"kind": "trace", "events": events}:
                    timeline.add(rank, events)
                case {"kind": "warning", "text": text}:
                    log.warning("rank %d: %s", rank, text)

        checkpoint = latest(job.folder)
        outcome = _fit_of(job.settings)(
            job,
            cluster,
            spark,
            on_message=receive,
            on_checkpoint=partial(_log_measured, run, task),
            checkpoint=checkpoint,
            description=run.address,
        )
    return outcome, times


def _fit_of(settings: Train) -> Callable[..., TrainingResult]:
    """The function that trains by ``train.strategy``: with synchronous ranks, or with parameter servers."""
    if isinstance(settings.strategy, AsynchronousOptions):
        from sparkdl.training.asynchronous.driver import train_asynchronously  # it loads Arrow Flight

        return train_asynchronously
    return run_attempts


@contextmanager
def _recorded(run: Run) -> Iterator[Timeline]:
    """A trace that is recorded at the end, also after a failure."""
    timeline = Timeline()
    try:
        yield timeline
    finally:
        run.log_text(timeline.to_json(), "trace.json")


def _log_measured(run: Run, task: Task, checkpoint: str) -> None:
    """Log the figures in a checkpoint, because messages of its last steps may have been lost with a rank or driver."""
    measured = load_manifest(checkpoint)
    _log_steps(run, task, measured.figures)
    for epoch, figures in enumerate(measured.history, start=1):
        run.log_metrics(figures, step=epoch)


def _log_steps(run: Run, task: Task, steps: list[list[float]]) -> None:
    for step, loss, figure, rate in steps:
        figures = {"step_loss": loss, f"step_{task.step_figure}": figure, "learning_rate": rate}
        run.log_metrics(figures, step=int(step))


def _finish(
    job: Job,
    outcome: TrainingResult,
    times: list[list[RankTimes]],
    run: Run,
    tracking: Tracking,
    traced: TracedNetwork | Reference | None,
) -> TrainedModel:
    """Log the result and the model, and register it if the settings say so."""
    dataset, task = job.dataset, task_to_train(job.dataset.card, job.settings)
    metrics = {
        f"{split}_{name}": value
        for split, found in outcome.evaluations.items()
        for name, value in found.figures.items()
    }
    run.log_metrics(metrics, step=outcome.best_epoch + 1)
    to_target = seconds_to_target(outcome.history, job.settings)
    if to_target is not None:
        run.log_metrics({"seconds_to_target": to_target}, step=len(outcome.history))
    asynchronous = isinstance(job.settings.strategy, AsynchronousOptions)
    bound_by = verdict(times, WITH_SERVERS if asynchronous else ADVICE)
    log.info("%s", bound_by)
    run.log_text(bound_by, "verdict.txt")
    for name, picture in task.curves(outcome.history).items():
        run.log_figure(picture, f"{name}.png")
    for split, found in outcome.evaluations.items():
        for name, picture in task.pictures(found.counts, dataset.class_names).items():
            run.log_figure(picture, f"{name}_{split}.png")
        if table := task.table(found.counts, dataset.class_names):
            run.log_text(table, f"classes_{split}.csv")
    with TemporaryDirectory() as folder:
        answer = write_model_folder(
            folder, dataset, job.settings, outcome.checkpoint, traced=traced, in_parts=job.plan is not None
        )
        model_uri = run.log_model(
            folder,
            inputs=dataset.served_columns,
            outputs={field.name: field.dataType.simpleString() for field in from_arrow_schema(answer)},
            example=example_row(dataset),
            requirements=packages_for_inputs(Path(folder)),
        )
    registered = run.register(model_uri, metrics) if tracking.register_as else None
    seconds = sum(dataset.rows("train") / figures["rows_per_second"] for figures in outcome.history)
    return TrainedModel(
        run_id=run.run_id,
        metrics=metrics,
        history=outcome.history,
        seconds_to_target=to_target,
        verdict=bound_by,
        rows_per_second=len(outcome.history) * dataset.rows("train") / seconds,
        checkpoint=outcome.checkpoint,
        model_uri=registered.uri if registered else model_uri,
        registered=registered,
        tracking=tracking,
    )
