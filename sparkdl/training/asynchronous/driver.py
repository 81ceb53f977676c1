"""Starts an asynchronous run, with the coordinator on the driver if tasks can reach it. Runs on the driver."""

from collections.abc import Callable

from pyspark.sql import SparkSession

from sparkdl.cluster import IndependentTasks, OnMessage, driver_addresses
from sparkdl.cluster.interrupts import plain_interrupts
from sparkdl.settings import Cluster
from sparkdl.training.asynchronous.away import Outcome, train_away
from sparkdl.training.asynchronous.follow import follow
from sparkdl.training.asynchronous.starter import TaskStarter
from sparkdl.training.attempts import repeat
from sparkdl.training.job import Job, TrainingResult

__all__ = ["train_asynchronously"]


def train_asynchronously(
    job: Job,
    cluster: Cluster,
    spark: SparkSession,
    *,
    on_message: OnMessage,
    on_checkpoint: Callable[[str], None],
    checkpoint: str | None = None,
    description: str = "",
) -> TrainingResult:
    """Train with servers and workers as independent tasks, from ``checkpoint`` if there is one.

    Takes the arguments of :func:`~sparkdl.training.attempts.run_attempts`, sends the same messages and raises the same
    errors. A task that fails is replaced while the others go on.
    """
    name, addresses = description or "sparkdl", driver_addresses(spark)
    if addresses is None:

        def attempt(job: Job) -> Outcome:
            return train_away(job, cluster, spark, on_message=on_message, name=name)

        return repeat(attempt, job, cluster, spark, on_checkpoint=on_checkpoint, checkpoint=checkpoint).result()
    if checkpoint:
        on_checkpoint(checkpoint)
    with plain_interrupts(), IndependentTasks(spark) as tasks:
        starter = TaskStarter(job, cluster, tasks, name=name)
        return follow(job, cluster, starter, *addresses, on_message=on_message, checkpoint=checkpoint)
