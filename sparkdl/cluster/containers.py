"""The memory of an executor's container on YARN and Kubernetes, which ends containers that take more.

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
LEAST_OVERHEAD = 384  # MiB, Spark's own
_FACTORS = {"yarn": "0.1", "k8s": "0.4"}
"""By the beginning of the master's address: Spark's default for Python on each, of ``spark.executor.memory``."""
_UNITS = {"": 1.0, "b": 2.0**-20, "k": 2.0**-10, "m": 1.0, "g": 2.0**10, "t": 2.0**20}
"""In MiB; Spark takes a plain number for MiB, too."""
_KILLED = re.compile(r"exceeding physical memory limits|possible container OOM|OOMKilled")
"""What YARN says, and what Spark makes of what Kubernetes says."""
_USED = re.compile(r"([\d.]+ [KMGT]?B) of [\d.]+ [KMGT]?B physical memory used")


class ContainerMemory(NamedTuple):
    """What an executor's container has, in MiB."""

    jvm: int
    """``spark.executor.memory``."""
    overhead: int
    """``spark.executor.memoryOverhead``, and what is outside of the JVM besides: it is Python's, and so the ranks'."""
    ranks: int
    """How many tasks an executor runs at a time."""


def container_memory(spark: SparkSession) -> ContainerMemory | None:
    """What the application's executors have; None where nothing ends those that take more."""
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
    """Why Spark's stage failed, and the setting to raise where a container was ended since it took too much memory."""
    memory = None
    if _KILLED.search(reason):
        with suppress(*JVM_ERRORS, PySparkException, OSError):  # a session that is gone tells no settings
            memory = container_memory(spark)
    if memory is None:
        return reason
    used = _USED.search(reason)
    enough = f" to more than {round(_mebibytes(used[1])) - memory.jvm} MiB" if used else ""
    return (
        f"{reason.rstrip('.')}. What a rank takes is outside of the JVM: raise `{OVERHEAD}`, now {memory.overhead} MiB,"
        f"{enough or ' or take a smaller train.batch_size'}"
    )


def _mebibytes(text: str) -> float:
    """``600m``, ``1g``, ``2.2 GB``: how much that is in MiB."""
    number, unit = re.fullmatch(r"([\d.]+) *([a-z]?)i?b?", text.strip().lower()).groups()  # type: ignore[union-attr]
    return float(number) * _UNITS[unit]
