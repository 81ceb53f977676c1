"""Checks settings, dataset, network, slots, storage and tracking before a run begins.

Runs on the driver.
"""

from dataclasses import dataclass

import torch
from pyspark.sql import SparkSession
from torch import nn

from sparkdl.cluster import driver_addresses, get_session, wait_for_ranks
from sparkdl.collectives import Backend, create_backend
from sparkdl.data import Dataset
from sparkdl.errors import ConfigError, DataError, DatasetError
from sparkdl.layouts import SharingPlan
from sparkdl.models import Reference, TracedNetwork
from sparkdl.settings import Cluster, Tracking, Train
from sparkdl.settings.averaging import Averaging
from sparkdl.settings.strategies import AsynchronousOptions
from sparkdl.storage import check_writable
from sparkdl.tracking import check_gate, check_store, download, pinned
from sparkdl.training.checkpoints.checkpoint_folder import latest
from sparkdl.training.checkpoints.record import RunRecord, find_run, parts_of
from sparkdl.training.checks.shared_replicas import check_shared_replicas, tried_plan
from sparkdl.training.checks.some_rows import some_rows
from sparkdl.training.checks.tried_model import tried_model
from sparkdl.training.starting_weights import starting_weights
from sparkdl.training.task_to_train import task_to_train
from sparkdl.training.tasks import Task
from sparkdl.training.teachers.ready_teacher import ReadyTeacher, ready_teacher

__all__ = ["Checked", "TriedRecipe", "check", "check_recipe", "open_dataset", "try_recipe"]


@dataclass(frozen=True)
class TriedRecipe:
    """Settings that fit a dataset."""

    dataset: Dataset
    settings: Train
    """The settings, with the task's defaults filled in."""
    backend: Backend
    model: nn.Module
    traced: TracedNetwork | Reference | None
    """The trace, or how to build the model if it cannot be exported; see :func:`tried_model` for when it is None."""
    plan: SharingPlan | None
    """How ranks share a replica of the network; None if each rank has a whole one."""


@dataclass(frozen=True)
class Checked(TriedRecipe):
    """All that a run needs to begin."""

    parts: str
    """See :func:`~sparkdl.training.checkpoints.record.parts_of`."""
    teacher: ReadyTeacher | None
    """The model that ``train.teacher`` names."""
    start: dict[str, torch.Tensor] | None
    """The first weights, from ``train.start_from``; None without it, and when a checkpoint is resumed."""
    resumed: RunRecord | None
    """The earlier run that is continued, if any."""
    spark: SparkSession
    num_ranks: int
    """As many ranks as there are slots for now."""


def check_recipe(
    dataset: Dataset | str | None, settings: Train, *, cluster: Cluster, tracking: Tracking, spark: SparkSession | None
) -> dict[str, str]:
    """The description that :func:`sparkdl.check_train` returns, once the layout is known. Runs on the driver."""
    checked = check(dataset, settings, cluster, tracking, spark)
    check_writable(settings.run_dir)
    parameters = sum(weight.numel() for weight in checked.model.parameters() if weight.requires_grad)
    rows = ", ".join(f"{checked.dataset.rows(split):,} {split}" for split in checked.dataset.splits)
    return {
        "dataset": f"{checked.dataset.path} ({rows}; {checked.dataset.learned})",
        "model": f"{settings.model}, {parameters:,} parameters",
        "ranks": f"{checked.num_ranks}, by {checked.backend.name}",
        "strategy": f"{settings.strategy.model_dump()['kind']}, {settings.epochs} epochs",
        "run": f"continues {checked.resumed.run_id}" if checked.resumed else f"a new one in {settings.run_dir}",
        "tracking": check_store(tracking),
    }


def check(
    dataset: Dataset | str | None,
    settings: Train,
    cluster: Cluster,
    tracking: Tracking,
    spark: SparkSession | None,
) -> Checked:
    """Check all that can be checked before there is a run. Raises the errors that :func:`sparkdl.train` lists."""
    tried = try_recipe(dataset, settings, cluster)
    dataset, settings, model, strategy = tried.dataset, tried.settings, tried.model, tried.settings.strategy
    task = task_to_train(dataset.card, settings)
    held_out = [split for split in dataset.splits if split != "train"]
    check_gate(tracking, [f"{split}_{figure}" for split in held_out for figure in ("loss", *task.figure_names)])
    teacher = None
    if settings.teacher:
        uris = [pinned(uri, tracking) for uri in settings.teacher.models]  # an alias may move before the run is resumed
        named = uris if isinstance(settings.teacher.model, list) else uris[0]
        settings = settings.model_copy(update={"teacher": settings.teacher.model_copy(update={"model": named})})
        teacher = ready_teacher(dataset, settings, [download(uri, tracking) for uri in uris])
    parts = parts_of(model, settings)
    resumed = find_run(dataset, settings, parts)
    start = None
    if settings.start_from and not (resumed and latest(f"{settings.run_dir}/{resumed.run_id}")):
        start = starting_weights(settings.start_from, dataset, settings, tracking)
    spark = spark or get_session(cluster)
    if isinstance(strategy, AsynchronousOptions):
        driver_addresses(spark)  # raises an error now if tasks cannot use one of the addresses
    # Before there is a run: the next `resume: auto` would adopt a run that never had slots.
    num_ranks = wait_for_ranks(
        spark, cluster, servers=cluster.servers if isinstance(strategy, AsynchronousOptions) else 0
    )
    return Checked(
        dataset=dataset,
        settings=settings,
        backend=tried.backend,
        model=model,
        traced=tried.traced,
        plan=tried.plan,
        parts=parts,
        teacher=teacher,
        start=start,
        resumed=resumed,
        spark=spark,
        num_ranks=num_ranks,
    )


def try_recipe(dataset: Dataset | str | None, settings: Train, cluster: Cluster, *, export: bool = True) -> TriedRecipe:
    """Check that settings fit a dataset, and that their network can be trained and, with ``export``, exported.

    Raises the errors that :func:`sparkdl.train` lists for settings, datasets and models.
    """
    if cluster.layout == "auto":
        raise ConfigError(
            "cluster.layout: auto is for `sparkdl train` (sparkdl.train), which measures first; give a layout here"
        )
    dataset = open_dataset(dataset or settings.dataset)
    task = task_to_train(dataset.card, settings)
    if dataset.card.labels:
        raise DatasetError(
            f"{dataset.path} is for very many classes; train on it with `sparkdl train-extreme`"
            " (sparkdl.train_extreme), or prepare it with a `prepare.task`, or without `prepare.sparse`"
        )
    if settings.task not in (None, task.name):
        raise DatasetError(
            f"train.task is {settings.task}, and {dataset.path} was prepared for {task.name}; prepare it with"
            f" prepare.task={settings.task}"
        )
    settings = _decided(settings, task)
    if dataset.rows("train") < cluster.replicas:
        raise DataError(
            f"the dataset {dataset.path} has {dataset.rows('train')} training rows, fewer than the {cluster.replicas} "
            "ranks that were requested; lower cluster.num_ranks"
        )
    layout = cluster.chosen_layout if cluster.chosen_layout and cluster.chosen_layout.has_parts else None
    if layout:
        check_shared_replicas(settings, task, layout)
    held_out = [split for split in dataset.splits if split != "train"]
    if settings.gradient_noise and task.name == "ranking":
        raise ConfigError(
            "train.gradient_noise needs the gradients of single rows, but in ranking only a group of rows has a loss;"
            " leave it out"
        )
    _check_figures(settings, task, has_validation="validation" in held_out, path=dataset.path)
    strategy = settings.strategy
    needs_torch = strategy.needs_torch if isinstance(strategy, Averaging) else None
    if layout:
        needs_torch = "runs on parts of a network (cluster.layout)"
    backend = create_backend(cluster.backend, needs_torch=needs_torch)
    on_disk = layout is not None
    model, traced = tried_model(dataset, settings, ranks=cluster.replicas, export=export, on_disk=on_disk)
    plan = tried_plan(model, some_rows(dataset), layout, batch_size=settings.batch_size) if layout else None
    return TriedRecipe(dataset, settings, backend, model, traced, plan)


def open_dataset(dataset: Dataset | str | None) -> Dataset:
    """The dataset of a run. Raises :class:`ConfigError` if the settings name none."""
    if dataset is None:
        raise ConfigError("there is nothing to train on: give a dataset, or set train.dataset or prepare.output")
    return dataset if isinstance(dataset, Dataset) else Dataset.open(dataset)


def _decided(settings: Train, task: Task) -> Train:
    """The settings with the task's defaults filled in, so that the run records what it was trained with."""
    usual = {"loss": settings.loss or task.loss, "best_by": settings.best_by or task.best_by}
    return settings.model_copy(update=usual)


def _check_figures(settings: Train, task: Task, *, has_validation: bool, path: str) -> None:
    """Raise an error if a figure decides something, such as the best epoch, and the run will not have it."""
    target = settings.target.metric if settings.target else None
    of_training = target is not None and target.startswith("train_")
    for key, figure in (("target.metric", target and target.partition("_")[2]), ("best_by", settings.best_by)):
        only_train = key == "target.metric" and of_training
        names = "loss", *(task.train_figures if only_train else task.figure_names)
        if figure and figure not in names:
            where = " in training" if only_train else ""
            raise ConfigError(
                f"train.{key} names {figure}, which {task.name} does not have{where}; it has {', '.join(names)}"
            )
    keys = {"target.metric": target is not None and target.startswith("validation"), "patience": settings.patience}
    for key, needs_validation in keys.items():
        if needs_validation and not has_validation:
            raise DatasetError(
                f"train.{key} needs validation figures, but {path} has no validation split; prepare it with one"
                f" (prepare.split), or change train.{key}"
            )
