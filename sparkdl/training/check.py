"""What has to be right before a run begins: settings, dataset, network, slots, storage, tracking.

Runs on the driver.
"""

from dataclasses import dataclass

from pyspark.sql import SparkSession
from torch import nn

from sparkdl.cluster import get_session, wait_for_slots
from sparkdl.collectives import Backend, create_backend
from sparkdl.data import Dataset
from sparkdl.errors import ConfigError, DataError, DatasetError
from sparkdl.settings import Cluster, Tracking, Train
from sparkdl.settings.averaging import Averaging
from sparkdl.settings.strategies import AsynchronousOptions
from sparkdl.storage import check_writable
from sparkdl.tracking import check_gate, check_store
from sparkdl.training.model_folder import check_model
from sparkdl.training.record import RunRecord, find_run, parts_of

__all__ = ["Checked", "check", "check_train"]


@dataclass(frozen=True)
class Checked:
    """A run that can begin."""

    dataset: Dataset
    backend: Backend
    model: nn.Module
    parts: str
    """See :func:`~sparkdl.training.record.parts_of`."""
    resumed: RunRecord | None
    """The run that it continues, if it does."""
    spark: SparkSession
    num_ranks: int
    """As many as there are slots for now."""


def check_train(
    dataset: Dataset | str | None = None,
    settings: Train | None = None,
    *,
    cluster: Cluster | None = None,
    tracking: Tracking | None = None,
    spark: SparkSession | None = None,
) -> dict[str, str]:
    """Check all that :func:`sparkdl.train` needs, train nothing, and say what would run. Runs on the driver.

    Takes the arguments of :func:`sparkdl.train` and raises its errors; also a
    :class:`~sparkdl.errors.StorageError` where ``settings.run_dir`` cannot be written, and a
    :class:`~sparkdl.errors.TrackingError` where MLflow's store cannot be used.
    """
    settings, cluster, tracking = settings or Train(), cluster or Cluster(), tracking or Tracking()
    checked = check(dataset, settings, cluster, tracking, spark)
    check_writable(settings.run_dir)
    parameters = sum(weight.numel() for weight in checked.model.parameters() if weight.requires_grad)
    rows = ", ".join(f"{checked.dataset.rows(split):,} {split}" for split in checked.dataset.splits)
    return {
        "dataset": f"{checked.dataset.path} ({rows}; {checked.dataset.num_classes:,} classes)",
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
    """What can be found before there is a run. Raises what :func:`sparkdl.train` says that it raises."""
    dataset = _open(dataset or settings.dataset)
    if dataset.input.kind == "sparse":
        raise DatasetError(
            f"{dataset.path} holds sparse rows, which networks of this kind do not read; train on it with `sparkdl "
            "train-extreme` (sparkdl.train_extreme), or prepare it without `prepare.sparse`"
        )
    if dataset.rows("train") < cluster.ranks.max:
        raise DataError(
            f"the dataset {dataset.path} has {dataset.rows('train')} training rows, fewer than the {cluster.ranks.max} "
            "ranks asked for; lower cluster.num_ranks"
        )
    held_out = [split for split in dataset.splits if split != "train"]
    if settings.target and settings.target.metric.startswith("validation") and "validation" not in dataset.splits:
        raise DatasetError(
            f"train.target.metric is {settings.target.metric}, and {dataset.path} has no validation split; prepare it"
            " with one (prepare.split), or choose train_accuracy or train_loss"
        )
    check_gate(tracking, [f"{split}_{figure}" for split in held_out for figure in ("loss", "accuracy")])
    strategy = settings.strategy
    backend = create_backend(
        cluster.backend, needs_torch=strategy.needs_torch if isinstance(strategy, Averaging) else None
    )
    model = check_model(dataset, settings, ranks=cluster.ranks.max)
    parts = parts_of(model, settings)
    resumed = find_run(dataset, settings, parts)
    spark = spark or get_session(cluster)
    ranks = cluster.ranks  # before there is a run: one that never had them would be adopted by the next `resume: auto`
    num_ranks = wait_for_slots(
        spark,
        ranks.max,
        timeout=cluster.slot_timeout,
        minimum=ranks.min,
        resources=cluster.resources,
        servers=cluster.servers if isinstance(strategy, AsynchronousOptions) else 0,
    )
    return Checked(dataset, backend, model, parts, resumed, spark, num_ranks)


def _open(dataset: Dataset | str | None) -> Dataset:
    if dataset is None:
        raise ConfigError("there is nothing to train on: give a dataset, or set train.dataset or prepare.output")
    return dataset if isinstance(dataset, Dataset) else Dataset.open(dataset)
