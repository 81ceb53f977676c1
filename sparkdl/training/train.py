"""From a dataset to a registered model. Runs on the driver."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pyspark.sql import SparkSession

from sparkdl.cluster import get_session, run_ranks
from sparkdl.data import Dataset
from sparkdl.data.model_inputs import example_row
from sparkdl.errors import ConfigError, DataError, RankError, TrainingError
from sparkdl.settings import Cluster, Tracking, Train
from sparkdl.tracking import Registered, Run, start_run
from sparkdl.tracking.figures import accuracy_curve, confusion_matrix, loss_curve
from sparkdl.training.checkpoint import BEST
from sparkdl.training.loop import Job, Outcome, train_rank
from sparkdl.training.model_folder import check_model, starting_weights, write_model_folder
from sparkdl.training.progress import Progress

__all__ = ["TrainedModel", "train"]


@dataclass(frozen=True)
class TrainedModel:
    """What :func:`train` returns."""

    run_id: str
    """The MLflow run."""
    metrics: dict[str, float]
    """``validation_loss``, ``test_accuracy`` and so on: the best checkpoint on every split but ``train``."""
    history: list[dict[str, float]]
    """One entry per epoch."""
    rows_per_second: float
    """Training rows of all ranks per second, over all epochs; evaluation and checkpoints are left out."""
    checkpoint: str
    """The best checkpoint."""
    model_uri: str
    """The logged model, ready for :func:`sparkdl.score`; the registered version when there is one."""
    registered: Registered | None
    """The version in the registry and whether the alias moved to it."""


def train(
    dataset: Dataset | str | None = None,
    settings: Train | None = None,
    *,
    cluster: Cluster | None = None,
    tracking: Tracking | None = None,
    spark: SparkSession | None = None,
) -> TrainedModel:
    """Train a network on a prepared dataset, one rank per task slot, and register the result.

    Runs on the driver. ``dataset`` is what :func:`sparkdl.prepare` returned or its folder; by default
    ``settings.dataset``. What can be wrong with settings, model and loss is found before a rank starts.

    Raises :class:`~sparkdl.errors.DatasetError` for a missing or damaged dataset,
    :class:`~sparkdl.errors.ModelError` for a network that does not fit it,
    :class:`~sparkdl.errors.NotEnoughSlotsError`, :class:`~sparkdl.errors.RankError` with the traceback of the rank that
    failed first, and :class:`~sparkdl.errors.TrainingError` when the loss is no longer a number.
    """
    settings, cluster, tracking = settings or Train(), cluster or Cluster(), tracking or Tracking()
    dataset = _open(dataset or settings.dataset)
    if dataset.rows("train") < cluster.num_ranks:
        raise DataError(
            f"the dataset {dataset.path} has {dataset.rows('train')} training rows, fewer than the {cluster.num_ranks} "
            "ranks asked for; lower cluster.num_ranks"
        )
    model = check_model(dataset, settings)
    spark = spark or get_session(cluster)
    sections = {"train": settings, "cluster": cluster, "tracking": tracking}
    params = {"dataset": dataset.path} | {name: section.model_dump() for name, section in sections.items()}
    with start_run(tracking, params=params) as run:
        folder = f"{settings.run_dir}/{run.run_id}"
        run.log_dataset(
            name=Path(dataset.path).name, digest=dataset.digest, source=dataset.path, card=dataset.card_json
        )
        start = starting_weights(settings.start_from, model, folder, tracking) if settings.start_from else None
        job = Job(dataset, settings, folder, start)
        outcome = _run(job, cluster, spark, run)
        return _finish(job, outcome, run, tracking)


def _run(job: Job, cluster: Cluster, spark: SparkSession, run: Run) -> Outcome:
    """The barrier stage, watched: rank 0's messages become the progress bar and the run's metrics."""
    with Progress() as progress:

        def receive(rank: int, message: dict[str, Any]) -> None:
            kind = message.pop("kind")
            if kind == "epoch_started":
                progress.epoch_started(**message)
            elif kind == "steps":
                progress.steps(**message)
                for step, loss, accuracy, rate in message["steps"]:
                    figures = {"step_loss": loss, "step_accuracy": accuracy, "learning_rate": rate}
                    run.log_metrics(figures, step=int(step))
            elif kind == "epoch":
                progress.epoch(**message)
                run.log_metrics(message["figures"], step=message["epoch"] + 1)

        try:
            outcomes = run_ranks(
                partial(train_rank, job),
                cluster.num_ranks,
                spark=spark,
                on_message=receive,
                slot_timeout=cluster.slot_timeout,
            )
        except RankError as error:
            if error.exception_type == TrainingError.__name__:
                raise TrainingError(error.reason) from None
            raise
    outcome = outcomes[0]
    if outcome is None:
        raise RankError("rank 0 ended without a result")
    return outcome


def _finish(job: Job, outcome: Outcome, run: Run, tracking: Tracking) -> TrainedModel:
    """Log what was found, and the model; register it where the settings say so."""
    dataset = job.dataset
    metrics = {
        f"{split}_{name}": value
        for split, found in outcome.evaluations.items()
        for name, value in (("loss", found.loss), ("accuracy", found.accuracy))
    }
    already = outcome.history[outcome.best_epoch]  # the validation figures have been logged with their epoch
    run.log_metrics(
        {name: value for name, value in metrics.items() if name not in already}, step=outcome.best_epoch + 1
    )
    run.log_figure(loss_curve(outcome.history), "loss.png")
    run.log_figure(accuracy_curve(outcome.history), "accuracy.png")
    for split, found in outcome.evaluations.items():
        if found.confusion is not None:
            run.log_figure(confusion_matrix(found.confusion, dataset.label_names), f"confusion_{split}.png")
    checkpoint = f"{job.folder}/{BEST}"
    with TemporaryDirectory() as folder:
        write_model_folder(folder, dataset, job.settings, checkpoint)
        model_uri = run.log_model(folder, inputs=dataset.raw_columns, example=example_row(dataset))
    registered = None
    if tracking.register_as:
        registered = run.register(model_uri, metrics)
        model_uri = registered.uri
    seconds = sum(dataset.rows("train") / figures["rows_per_second"] for figures in outcome.history)
    return TrainedModel(
        run_id=run.run_id,
        metrics=metrics,
        history=outcome.history,
        rows_per_second=len(outcome.history) * dataset.rows("train") / seconds,
        checkpoint=checkpoint,
        model_uri=model_uri,
        registered=registered,
    )


def _open(dataset: Dataset | str | None) -> Dataset:
    if dataset is None:
        raise ConfigError("there is nothing to train on: give a dataset, or set train.dataset or prepare.output")
    return dataset if isinstance(dataset, Dataset) else Dataset.open(dataset)
