"""The resources of a stage's tasks, if they differ from those of the application. Runs on the driver."""

from functools import lru_cache

from pyspark.resource import ResourceProfile, ResourceProfileBuilder, TaskResourceRequests
from pyspark.sql import SparkSession

from sparkdl.errors import ClusterError, ConfigError
from sparkdl.sessions import application_setting, is_local
from sparkdl.settings import Resources
from sparkdl.stack import check_stage_resources

__all__ = ["check_resources", "no_executor_has", "profile_of", "ranks_of_task"]

CORES = "spark.executor.cores"
GPUS = "spark.executor.resource.gpu.amount"
GPUS_OF_TASK = "spark.task.resource.gpu.amount"


def check_resources(resources: Resources, spark: SparkSession) -> None:
    """Check at once what Spark would only notice later, or never.

    Raises :class:`~sparkdl.errors.ConfigError` if Spark does not support resources per stage, and
    :class:`~sparkdl.errors.ClusterError` for resources that no executor has, according to its settings.
    """
    check_stage_resources(spark.version)
    if is_local(spark):
        raise ConfigError("cluster.resources is for clusters, but this Spark is local; remove it")
    cores = application_setting(spark, CORES, "")
    if (cores and int(cores) < (resources.cpus or 1)) or int(application_setting(spark, GPUS, "0")) < resources.gpus:
        raise no_executor_has(resources, spark)


def no_executor_has(resources: Resources, spark: SparkSession) -> ClusterError:
    """The error that names the missing resources."""
    gpus = "1 GPU" if resources.gpus == 1 else f"{resources.gpus} GPUs"
    wanted = [f"{resources.cpus} cores"] * bool(resources.cpus) + [gpus] * bool(resources.gpus)
    there = (f"{name}={application_setting(spark, name, default)}" for name, default in ((CORES, "all"), (GPUS, "0")))
    return ClusterError(
        f"cluster.resources needs {' and '.join(wanted)} per task, but no executor has that ({', '.join(there)});"
        " lower it, or start the application with larger executors"
    )


def ranks_of_task(resources: Resources | None, spark: SparkSession) -> int:
    """The number of ranks per task of a barrier stage: one, or one per GPU of the task."""
    if resources is not None:
        return max(resources.gpus, 1)
    # Tasks may share a GPU (0.25). Local Spark has none to give.
    return 1 if is_local(spark) else max(int(float(application_setting(spark, GPUS_OF_TASK, "0"))), 1)


@lru_cache(maxsize=4)  # reused, because Spark keeps every profile until the application ends
def profile_of(resources: Resources, spark: SparkSession) -> ResourceProfile:
    """The resources that Spark gives to each task of a stage.

    See https://spark.apache.org/docs/latest/configuration.html#stage-level-scheduling-overview.
    """
    tasks = TaskResourceRequests()
    if resources.cpus:
        tasks.cpus(resources.cpus)
    if resources.gpus:
        tasks.resource("gpu", resources.gpus)
    return ResourceProfileBuilder().require(tasks).build
