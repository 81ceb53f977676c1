"""Notices that an executor which runs ranks is about to be taken away. Runs on the driver."""

import logging
import time
from contextlib import suppress

from pyspark.sql import SparkSession

from sparkdl.cluster.executors import RunningTask, running_tasks
from sparkdl.errors import ConfigError
from sparkdl.sessions import JVM_ERRORS, is_local, require_classic

__all__ = ["Departures", "check_notice"]

LOOK_SECONDS = 1.0  # between two checks of the executors

logger = logging.getLogger("sparkdl")


def check_notice(spark: SparkSession) -> None:
    """Raise :class:`ConfigError` if ranks could not move to other executors."""
    require_classic(spark, "cluster.preemption_notice")
    if is_local(spark):
        raise ConfigError("cluster.preemption_notice is for clusters, but local Spark has only one host; remove it")


class Departures:
    """Watches the executors that run the tasks of a stage.

    Spark decommissions an executor when its master, a cloud's scheduler or a signal (SIGPWR) requests it. If a rank has
    received a notice for its host, Spark is asked to decommission the executors there.
    """

    def __init__(self, spark: SparkSession, tag: str, num_tasks: int) -> None:
        self._spark, self._tag, self._num_tasks = spark, tag, num_tasks
        self._tasks: list[RunningTask] = []
        self._next_look = 0.0
        self._noticed = False

    def noticed(self) -> bool:
        """Whether one of the executors is being decommissioned."""
        if not self._noticed and time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + LOOK_SECONDS
            with suppress(*JVM_ERRORS, OSError):
                self._noticed = any(map(self._is_decommissioned, self._running()))
        return self._noticed

    def give_up(self, partition: int) -> None:
        """Exclude the executors on the host of a task from new tasks. Tasks that already run there continue."""
        with suppress(*JVM_ERRORS, OSError):
            for task in self._running():
                if task.partition == partition:
                    self._spark._jsc.sc().schedulerBackend().decommissionExecutorsOnHost(task.host)
                    self._next_look = 0.0

    def _is_decommissioned(self, task: RunningTask) -> bool:
        state = self._spark._jsc.sc().taskScheduler().getExecutorDecommissionState(task.executor)
        if state.isDefined():
            logger.warning(
                "executor %s on host %s is about to be taken away: ranks write a checkpoint and continue elsewhere",
                *(task.executor, task.host),
            )
        return bool(state.isDefined())

    def _running(self) -> list[RunningTask]:
        """The running tasks. They do not move, so Spark is only asked until all of them have started."""
        if len(self._tasks) < self._num_tasks:
            self._tasks = running_tasks(self._spark, self._tag)
        return self._tasks
