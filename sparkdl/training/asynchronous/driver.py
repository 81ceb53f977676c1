"""An asynchronous run: its coordinator, its tasks, its epochs. Runs on the driver."""

from collections.abc import Callable

from pyspark.sql import SparkSession

from sparkdl.cluster import IndependentTasks, OnMessage, driver_addresses
from sparkdl.cluster.interrupts import plain_interrupts
from sparkdl.settings import Cluster
from sparkdl.settings.strategies import AsynchronousOptions, SandblasterOptions, SteppingOptions
from sparkdl.training.asynchronous.coordinator import Coordinator
from sparkdl.training.asynchronous.crew import Crew, Tasks
from sparkdl.training.asynchronous.epochs import Epochs
from sparkdl.training.asynchronous.sandblaster import Sandblaster
from sparkdl.training.checkpoint import remove_leftovers
from sparkdl.training.loop import Job, TrainingResult

__all__ = ["follow", "train_asynchronously"]


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
    bind_address, host = driver_addresses(spark)
    if checkpoint:
        on_checkpoint(checkpoint)
    with plain_interrupts(), IndependentTasks(spark) as tasks:
        return follow(
            job, cluster, tasks, bind_address, host, on_message=on_message, checkpoint=checkpoint, name=description
        )


def follow(
    job: Job,
    cluster: Cluster,
    tasks: Tasks,
    bind_address: str,
    host: str,
    *,
    on_message: OnMessage,
    checkpoint: str | None = None,
    name: str = "",
) -> TrainingResult:
    """The same with whatever runs ``tasks``; they find the driver at ``host``, where it listens at ``bind_address``."""
    options = job.settings.strategy
    assert isinstance(options, AsynchronousOptions)
    remove_leftovers(job.folder)
    staleness = options.staleness if isinstance(options, SteppingOptions) else None
    with Coordinator(bind_address, host, cluster, staleness=staleness) as coordinator:
        coordinator.checkpoint = checkpoint
        with Crew(job, cluster, tasks, coordinator, name=name or "sparkdl") as crew:
            epochs = Sandblaster if isinstance(options, SandblasterOptions) else Epochs
            return epochs(job, cluster, coordinator, crew, on_message).run()
