"""Counts how many ranks fit into the cluster at the same time, and waits for more slots. Runs on the driver."""

import logging
import time

from pyspark.sql import SparkSession

from sparkdl.cluster.connect import check_server, reaches_client
from sparkdl.cluster.resources import check_resources, no_executor_has, profile_of, ranks_of_task
from sparkdl.errors import ConfigError, NotEnoughSlotsError
from sparkdl.sessions import application_setting, default_parallelism, is_local, is_remote
from sparkdl.settings import Cluster, Resources

__all__ = ["count_ranks", "count_slots", "wait_for_ranks", "wait_for_slots"]

POLL_SECONDS = 0.2  # between two counts of the slots
SETTLE_SECONDS = 3.0  # how long to wait, after the first executor, for executors of another size
PARALLELISM = "spark.default.parallelism", "spark.sql.leafNodeDefaultParallelism"
"""If one of these is set, Spark's default number of partitions is not the number of cores."""

logger = logging.getLogger("sparkdl")


def count_slots(spark: SparkSession, resources: Resources | None = None) -> int | None:
    """The number of tasks with these resources that the cluster can run at the same time.

    Spark Connect does not report it, so it is computed from the number of cores; None if that is unknown, too. If
    executors cannot reach the client, one slot is subtracted: tasks that fetch the messages of ranks need it.
    """
    if is_remote(spark):
        return _estimated_slots(spark, resources)
    context = spark._jsc.sc()
    profiles = context.resourceProfileManager()
    if resources is None:
        return int(context.maxNumConcurrentTasks(profiles.defaultResourceProfile()))
    profile = profile_of(resources, spark)._java_resource_profile
    profiles.addResourceProfile(profile)  # Spark only counts for registered profiles
    return int(context.maxNumConcurrentTasks(profile))


def count_ranks(spark: SparkSession, resources: Resources | None = None) -> int | None:
    """The number of ranks of a barrier stage that the cluster can run at the same time; see :func:`count_slots`."""
    slots = count_slots(spark, resources)
    return slots and slots * ranks_of_task(resources, spark)


def wait_for_ranks(spark: SparkSession, cluster: Cluster, *, servers: int = 0) -> int:
    """Wait for the slots that the settings require; return how many ranks to start. See :func:`wait_for_slots`."""
    return wait_for_slots(
        spark,
        cluster.ranks.max,
        timeout=cluster.slot_timeout,
        minimum=cluster.ranks.min,
        resources=cluster.resources,
        servers=servers,
    )


def wait_for_slots(
    spark: SparkSession,
    num_ranks: int,
    *,
    timeout: float,
    minimum: int | None = None,
    resources: Resources | None = None,
    servers: int = 0,
) -> int:
    """Wait until the cluster has a slot for every rank; return how many ranks to start.

    The result is ``num_ranks``, or, after ``timeout`` seconds, the number of slots, if that is at least ``minimum`` (by
    default, ``num_ranks``). A slot with several GPUs counts for one rank per GPU. There is no wait in local mode, and
    only a short one for ``resources`` that no executor has.

    ``servers`` are the parameter servers of asynchronous training; each takes a slot, as does each of its ranks. These
    ranks need not start together, so under dynamic allocation there is no wait either: Spark adds executors while tasks
    wait for slots. If executors cannot reach a client of Spark Connect, their coordinator takes a slot, too, and is a
    barrier stage.

    Raises :class:`~sparkdl.errors.NotEnoughSlotsError`; :class:`~sparkdl.errors.ClusterError` if executors lack
    ``resources``; and, without servers, :class:`~sparkdl.errors.ConfigError` if the number of ranks is not a multiple
    of the GPUs per task, and under dynamic allocation, which does not support barrier stages.
    """
    if is_remote(spark):
        check_server(spark)
    dynamic = _is_dynamic(spark)
    coordinators = int(bool(servers) and is_remote(spark) and not reaches_client(spark))
    if dynamic and (coordinators or not servers):
        way_out = (
            "let executors reach this client (SPARK_LOCAL_IP)"
            if coordinators
            else "set train.strategy to an asynchronous one, such as downpour"
        )
        raise ConfigError(
            "Spark does not run barrier stages under dynamic allocation, because it cannot guarantee all slots at the"
            " same time (SPARK-24942); start the application with spark.dynamicAllocation.enabled=false and a fixed"
            f" spark.executor.instances or spark.cores.max, or {way_out}"
        )
    if resources is not None:
        check_resources(resources, spark)
    count, each = (count_slots, 1) if servers else (count_ranks, ranks_of_task(resources, spark))
    if num_ranks % each:
        raise ConfigError(
            f"{num_ranks} ranks were requested, but a task has {each} GPUs, with one rank for each: set num_ranks to"
            f" a multiple of {each}, or give tasks one GPU (spark.task.resource.gpu.amount, cluster.resources.gpus)"
        )
    slots = count(spark, resources)
    beside = servers + coordinators
    needed = num_ranks + beside
    if dynamic or slots is None or slots >= needed:
        return num_ranks
    minimum = num_ranks if minimum is None else minimum
    wanted = f"{num_ranks} ranks" if minimum == num_ranks else f"{minimum} to {num_ranks} ranks"
    if servers:
        wanted += f", {servers} servers and their coordinator" if coordinators else f" and {servers} servers"
    if is_local(spark):
        if slots >= minimum + beside:
            return slots - beside
        raise NotEnoughSlotsError(
            f"{wanted} were requested, but this local Spark has {slots} slots; lower num_ranks, or start Spark"
            f" with more (cluster.embedded_slots, or --master local[{needed}])"
        )
    logger.warning("waiting up to %g s for %d slots; the cluster has %d now", timeout, needed, slots)
    started = time.monotonic()
    while slots < needed and (waited := time.monotonic() - started) < timeout:
        if resources is not None and slots == 0 and waited > SETTLE_SECONDS and count_slots(spark):
            raise no_executor_has(resources, spark)
        time.sleep(POLL_SECONDS)
        slots = count(spark, resources) or 0
    if slots < minimum + beside:
        raise NotEnoughSlotsError(
            f"{wanted} were requested, but the cluster has {slots} slots after {timeout:g} s; lower"
            " num_ranks, add executors or cores, or raise cluster.slot_timeout if executors are still starting"
        )
    return min(slots - beside, num_ranks)


def _estimated_slots(spark: SparkSession, resources: Resources | None) -> int | None:
    if any(application_setting(spark, name, "") for name in PARALLELISM):
        return None
    cpus = (resources and resources.cpus) or int(application_setting(spark, "spark.task.cpus", "1"))
    cores = default_parallelism(spark)
    of_one = int(application_setting(spark, "spark.executor.cores", "0")) or cores
    return cores // of_one * (of_one // cpus) - (not reaches_client(spark))  # one fetches the messages of ranks


def _is_dynamic(spark: SparkSession) -> bool:
    """Whether Spark adds and removes executors with its load."""
    return application_setting(spark, "spark.dynamicAllocation.enabled", "false") == "true" and not is_local(spark)
