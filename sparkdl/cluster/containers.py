"""The memory of an executor's container on YARN and Kubernetes, which kill containers that exceed it.

Runs on the driver.
"""

import re
from contextlib import suppress
from typing import NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from sparkdl.sessions import JVM_ERRORS, application_setting

__all__ = ["ContainerMemory", "container_memory", "with_memory_advice"]

OVERHEAD = "spark.executor.memoryOverhead"
LEAST_OVERHEAD = 384  # MiB, Spark's minimum
_FACTORS = {"yarn": "0.1", "k8s": "0.4"}
"""Spark's default overhead as a share of ``spark.executor.memory``, by the prefix of the master's address."""
_UNITS = {"": 1.0, "b": 2.0**-20, "k": 2.0**-10, "m": 1.0, "g": 2.0**10, "t": 2.0**20}
"""Units in MiB. A number without a unit is in MiB, too."""
_KILLED = re.compile(r"exceeding physical memory limits|possible container OOM|OOMKilled")
"""The texts in Spark's errors if YARN or Kubernetes has killed a container for its memory."""
_USED = re.compile(r"([\d.]+ [KMGT]?B) of [\d.]+ [KMGT]?B physical memory used")


class ContainerMemory(NamedTuple):
    """The memory of an executor's container, in MiB."""

    jvm: int
    """``spark.executor.memory``."""
    overhead: int
    """``spark.executor.memoryOverhead`` and other memory outside the JVM: it is for Python, and so for the ranks."""
    ranks: int
    """The number of tasks that an executor runs at a time."""


def container_memory(spark: SparkSession) -> ContainerMemory | None:
    """The memory of the application's executors; None if the cluster manager does not enforce it."""
    master = application_setting(spark, "spark.master", "")
    factor = next((factor for kind, factor in _FACTORS.items() if master.startswith(kind)), None)
    if factor is None:
        return None

    def number(name: str, default: str) -> float:
        return float(application_setting(spark, f"spark.{name}", default))

    jvm = _mebibytes(application_setting(spark, "spark.executor.memory", "1g"))
    factor = str(number("kubernetes.memoryOverheadFactor", factor)) if master.startswith("k8s") else factor
    usual = max(LEAST_OVERHEAD, jvm * number("executor.memoryOverheadFactor", factor))
    overhead = _mebibytes(application_setting(spark, OVERHEAD, str(round(usual))))
    overhead += _mebibytes(application_setting(spark, "spark.executor.pyspark.memory", "0"))
    tasks = int(number("executor.cores", "1") // number("task.cpus", "1"))
    return ContainerMemory(round(jvm), round(overhead), max(1, tasks))


def with_memory_advice(reason: str, spark: SparkSession) -> str:
    """Why Spark's stage failed; if a container was killed for its memory, also the setting to raise."""
    memory = None
    if _KILLED.search(reason):
        with suppress(*JVM_ERRORS, PySparkException, OSError):  # the session may be gone
            memory = container_memory(spark)
    if memory is None:
        return reason
    used = _USED.search(reason)
    enough = f" to more than {round(_mebibytes(used[1])) - memory.jvm} MiB" if used else ""
    return (
        f"{reason.rstrip('.')}. Ranks use memory outside the JVM: raise `{OVERHEAD}`, now {memory.overhead} MiB,"
        f"{enough or ' or set a smaller train.batch_size'}"
    )


def _mebibytes(text: str) -> float:
    """An amount such as ``600m``, ``1g`` or ``2.2 GB`` in MiB."""
    number, unit = re.fullmatch(r"([\d.]+) *([a-z]?)i?b?", text.strip().lower()).groups()  # type: ignore[union-attr]
    return float(number) * _UNITS[unit]
