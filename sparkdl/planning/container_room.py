"""Whether ranks fit into the memory of their containers, beyond which YARN or Kubernetes kills them.

Runs on the driver.
"""

from pyspark.sql import SparkSession

from sparkdl.cluster import ContainerMemory, container_memory
from sparkdl.data import Dataset
from sparkdl.errors import ClusterError
from sparkdl.planning.memory import memory_of_rank
from sparkdl.settings import Cluster, Train
from sparkdl.settings.strategies import AllReduceOptions
from sparkdl.training.checks.some_rows import some_rows
from sparkdl.training.checks.tried_model import tried_model

__all__ = ["check_room"]

PYTHON_BYTES = 600 << 20
"""Memory of a process that has imported PyTorch (builds with CUDA take the most)."""


def check_room(dataset: Dataset, settings: Train, cluster: Cluster, spark: SparkSession) -> dict[str, str]:
    """The memory that a rank takes, and that it has; empty where containers have no limit or the need is not known.

    Raises :class:`ClusterError`, which names the setting to raise, where ranks do not fit. The need is known for
    strategies whose ranks have whole replicas or shards.
    """
    container = container_memory(spark)
    in_parts = cluster.chosen_layout is not None and cluster.chosen_layout.has_parts
    if container is None or in_parts or not isinstance(settings.strategy, AllReduceOptions):
        return {}
    ranks = cluster.ranks.min
    model, _ = tried_model(dataset, settings, ranks=ranks, export=False, on_disk=True)
    step = memory_of_rank(model, some_rows(dataset), settings, ranks=ranks, batch=settings.batch_size)
    return {"memory": _fitting(container, PYTHON_BYTES + step.total)}


def _fitting(container: ContainerMemory, rank_bytes: float) -> str:
    each = round(rank_bytes / (1 << 20))
    needed = each * container.ranks
    if needed <= container.overhead:
        return f"{each} MiB of a rank, and {container.overhead // container.ranks} MiB for it in its container"
    together = f", and an executor runs {container.ranks} of them" if container.ranks > 1 else ""
    raise ClusterError(
        f"a rank takes about {each} MiB{together}; a container has {container.overhead} MiB outside of the JVM and is"
        f" ended when it takes more. Set `spark.executor.memoryOverhead` to {needed} MiB or more, or take a smaller"
        " train.batch_size"
    )
