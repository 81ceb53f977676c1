"""Training with the layout that its settings give, or that a plan finds best for them. Runs on the driver."""

import logging
from dataclasses import dataclass

from pyspark.sql import SparkSession

from sparkdl.cluster import get_session
from sparkdl.data import Dataset
from sparkdl.errors import ConfigError
from sparkdl.planning.container_room import check_room
from sparkdl.settings import Cluster, Tracking, Train
from sparkdl.settings.strategies import AllReduceOptions
from sparkdl.training.checks.check import check_recipe, open_dataset
from sparkdl.training.train import TrainedModel, train_from

__all__ = ["check_train", "train"]

log = logging.getLogger(__name__)


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
    ``settings.dataset``. Settings, model and loss are checked before a rank starts. When a rank, an executor or a host
    fails, training continues from the last checkpoint, and ends with the same weights as without the failure.

    With ``cluster.layout: auto``, ranks first measure the network for some seconds. Whatever layout is chosen, a step
    has as many rows as with whole replicas. The table of layouts is an artifact of the run.

    Raises :class:`~sparkdl.errors.DatasetError` for a missing or damaged dataset, :class:`~sparkdl.errors.ModelError`
    for a network that does not fit it, :class:`~sparkdl.errors.NotEnoughSlotsError`, :class:`~sparkdl.errors.RankError`
    with the traceback of the rank that failed first when restarts do not help, :class:`~sparkdl.errors.TrainingError`
    when the loss is no longer a number, :class:`~sparkdl.errors.CheckpointError` when the checkpoint to continue from
    cannot be read, and :class:`~sparkdl.errors.RunCancelledError` when Spark's job was cancelled from outside.
    """
    settings, cluster = settings or Train(), cluster or Cluster()
    chosen = _chosen(dataset, settings, cluster, spark)
    return train_from(
        None,
        dataset,
        chosen.settings,
        cluster=chosen.cluster,
        tracking=tracking,
        spark=spark,
        replicas=cluster.replicas,
        layout_plan=chosen.plan,
    )


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
    :class:`~sparkdl.errors.StorageError` where ``settings.run_dir`` cannot be written, a
    :class:`~sparkdl.errors.TrackingError` where MLflow's store cannot be used, and a
    :class:`~sparkdl.errors.ClusterError` where ranks do not fit into containers of YARN or Kubernetes.
    """
    settings, cluster, tracking = settings or Train(), cluster or Cluster(), tracking or Tracking()
    chosen = _chosen(dataset, settings, cluster, spark)
    said = check_recipe(dataset, chosen.settings, cluster=chosen.cluster, tracking=tracking, spark=spark)
    opened, session = open_dataset(dataset or settings.dataset), spark or get_session(chosen.cluster)
    room = check_room(opened, chosen.settings, chosen.cluster, session)
    return said | room | ({"layout": chosen.name} if chosen.name else {})


@dataclass(frozen=True)
class _Chosen:
    """Settings with the layout that was chosen."""

    settings: Train
    cluster: Cluster
    name: str = ""
    """The chosen layout; empty if the settings give one."""
    plan: str = ""
    """The table of layouts that it was chosen from."""


def _chosen(dataset: Dataset | str | None, settings: Train, cluster: Cluster, spark: SparkSession | None) -> _Chosen:
    """Choose for ``cluster.layout: auto``. Raises :class:`ConfigError` where no layout fits into the ranks' memory."""
    if cluster.layout != "auto":
        return _Chosen(settings, cluster)
    strategy = settings.strategy
    if strategy != AllReduceOptions():
        raise ConfigError(
            "cluster.layout: auto chooses shards and layouts for the strategy allreduce without options, and"
            " train.strategy is another one; leave it out, or give a layout"
        )
    if cluster.ranks.max == 1:
        return _Chosen(settings, cluster.model_copy(update={"layout": None}), "one rank")
    from sparkdl.planning.plan_training import plan_layout  # most runs have no use for what it loads

    plan = plan_layout(open_dataset(dataset or settings.dataset), settings, cluster, spark)
    best = plan.choices.best
    if best is None:
        raise ConfigError(f"cluster.layout: auto: {plan.choices.advice}")
    log.info("cluster.layout: auto measured %d ranks: %s", plan.ranks, plan.choices.advice)
    shared = best.layout if best.layout.has_parts else None
    return _Chosen(
        settings.model_copy(update={"strategy": best.strategy}),
        cluster.model_copy(update={"layout": shared, "num_ranks": cluster.num_ranks}),
        best.name,
        f"{plan.choices.table}\n\n{plan.choices.advice}\n",
    )
