"""How many ranks fit into the cluster at the same time, and waiting for more room. Runs on the driver."""

import logging
import time

from pyspark.sql import SparkSession

from sparkdl.errors import ConfigError, NotEnoughSlotsError

__all__ = ["application_setting", "count_slots", "is_local", "wait_for_slots"]

POLL_SECONDS = 0.2  # between two looks at the number of slots

logger = logging.getLogger("sparkdl")


def count_slots(spark: SparkSession) -> int | None:
    """How many tasks the cluster can run at the same time; None where Spark does not say (Spark Connect)."""
    if not hasattr(spark, "_jsc"):
        return None
    context = spark._jsc.sc()
    return int(context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()))


def wait_for_slots(spark: SparkSession, num_ranks: int, *, timeout: float, minimum: int | None = None) -> int:
    """Wait until the cluster has a slot for every rank; return how many ranks to start.

    That is ``num_ranks``, or after ``timeout`` seconds what there is, if that is at least ``minimum`` (by default,
    ``num_ranks``). In local mode nobody waits. Raises :class:`~sparkdl.errors.NotEnoughSlotsError`, and
    :class:`~sparkdl.errors.ConfigError` under dynamic allocation, where Spark refuses barrier stages.
    """
    _refuse_dynamic_allocation(spark)
    slots = count_slots(spark)
    if slots is None or slots >= num_ranks:
        return num_ranks
    minimum = num_ranks if minimum is None else minimum
    wanted = f"{num_ranks} ranks" if minimum == num_ranks else f"{minimum} to {num_ranks} ranks"
    if is_local(spark):
        if slots >= minimum:
            return slots
        raise NotEnoughSlotsError(
            f"{wanted} were asked for, and this local Spark has {slots} slots; lower num_ranks, or start Spark"
            f" with more (cluster.embedded_slots, or --master local[{num_ranks}])"
        )
    logger.warning("waiting up to %g s for %d slots; the cluster has %d now", timeout, num_ranks, slots)
    deadline = time.monotonic() + timeout
    while slots < num_ranks and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        slots = count_slots(spark) or 0
    if slots < minimum:
        raise NotEnoughSlotsError(
            f"{wanted} were asked for, and the cluster has {slots} slots after {timeout:g} s; lower"
            " num_ranks, add executors or cores, or raise cluster.slot_timeout if executors are still starting"
        )
    return min(slots, num_ranks)


def is_local(spark: SparkSession) -> bool:
    """Whether driver and executors are one process."""
    master = application_setting(spark, "spark.master", "")
    return master == "local" or master.startswith("local[")


def application_setting(spark: SparkSession, name: str, default: str) -> str:
    """A setting that the application was started with; a session's own may have been changed since."""
    # getConf() would copy all settings one by one, which takes a tenth of a second.
    conf = spark.sparkContext._conf if hasattr(spark, "_jsc") else spark.conf
    return str(conf.get(name, default))


def _refuse_dynamic_allocation(spark: SparkSession) -> None:
    if application_setting(spark, "spark.dynamicAllocation.enabled", "false").lower() == "true" and not is_local(spark):
        raise ConfigError(
            "Spark does not run barrier stages under dynamic allocation, because it could not promise all slots at the"
            " same time (SPARK-24942); start the application with spark.dynamicAllocation.enabled=false and a fixed"
            " spark.executor.instances or spark.cores.max"
        )
