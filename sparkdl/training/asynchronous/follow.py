"""Runs an asynchronous training where its coordinator is: starts its tasks, follows its epochs."""

from sparkdl.cluster import OnMessage
from sparkdl.parameters import Credentials
from sparkdl.settings import Cluster
from sparkdl.settings.strategies import AsynchronousOptions, SandblasterOptions, SteppingOptions
from sparkdl.training.asynchronous.coordinator import Coordinator
from sparkdl.training.asynchronous.crew import Crew
from sparkdl.training.asynchronous.epochs import Epochs
from sparkdl.training.asynchronous.sandblaster import Sandblaster
from sparkdl.training.asynchronous.starter import Starter
from sparkdl.training.checkpoints.checkpoint_folder import remove_leftovers
from sparkdl.training.job import Job, TrainingResult

__all__ = ["follow"]


def follow(
    job: Job,
    cluster: Cluster,
    starter: Starter,
    bind_address: str,
    host: str,
    *,
    on_message: OnMessage,
    checkpoint: str | None = None,
    credentials: Credentials | None = None,
) -> TrainingResult:
    """Train with tasks that reach the coordinator at ``host``; it listens on ``bind_address``.

    Runs on the driver, or, where tasks cannot reach the driver, on rank 0 of a launch of one rank
    (:mod:`sparkdl.training.asynchronous.away`). ``credentials`` are new ones by default.
    """
    options = job.settings.strategy
    assert isinstance(options, AsynchronousOptions)
    remove_leftovers(job.folder)
    staleness = options.staleness if isinstance(options, SteppingOptions) else None
    with Coordinator(bind_address, host, cluster, staleness=staleness, credentials=credentials) as coordinator:
        coordinator.checkpoint = checkpoint
        with Crew(cluster, starter, coordinator) as crew:
            epochs = Sandblaster if isinstance(options, SandblasterOptions) else Epochs
            return epochs(job, cluster, coordinator, crew, on_message).run()
