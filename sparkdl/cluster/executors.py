"""Finds the executors that run the tasks of a stage, and replaces one that does not end them. Runs on the driver."""

import logging
import time
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

from sparkdl.sessions import JVM_ERRORS, is_local

__all__ = ["RunningTask", "end_tasks", "running_tasks"]

POLL_SECONDS = 0.2
TASK_SECONDS = (
    5.0  # the longest that a healthy executor takes to end a cancelled task: Spark kills its Python after 2 + 2 s
)

logger = logging.getLogger("sparkdl")


class RunningTask(NamedTuple):
    """A task that runs, as far as Spark knows, and where."""

    partition: int
    executor: str
    host: str


def running_tasks(spark: SparkSession, tag: str) -> list[RunningTask]:
    """The tasks of the jobs with this tag that have not ended, as far as the driver knows."""
    tracker = spark.sparkContext.statusTracker()
    tagged = spark._jsc.sc().statusTracker().getJobIdsForTag(tag)
    jobs = filter(None, map(tracker.getJobInfo, tagged))
    return [task for job in jobs for stage in job.stageIds for task in _running(spark, stage)]


def end_tasks(spark: SparkSession, tag: str) -> None:
    """Wait until the tasks of a cancelled job have ended; replace an executor that does not end them.

    A stopped JVM, or one that cannot kill its Python worker, would hold its slots until Spark replaces it after two
    minutes, and the next stage would wait for these slots.
    """
    deadline = time.monotonic() + TASK_SECONDS
    while tasks := running_tasks(spark, tag):
        if time.monotonic() > deadline:
            break
        time.sleep(POLL_SECONDS)
    if is_local(spark):
        return  # the executor is the driver
    for executor, host in {(task.executor, task.host) for task in tasks}:
        logger.warning("executor %s on host %s does not end its tasks; asking Spark to replace it", executor, host)
        try:
            spark._jsc.sc().killAndReplaceExecutor(executor)
        except JVM_ERRORS as error:
            logger.warning("Spark cannot replace executor %s: %s", executor, str(error).partition("\n")[0])


def _running(spark: SparkSession, stage: int) -> list[RunningTask]:
    try:
        tasks: Any = spark._jsc.sc().statusStore().taskList(stage, 0, 1 << 20)
    except JVM_ERRORS:
        return []  # the stage is not submitted yet, or Spark no longer keeps it
    found = [tasks.apply(index) for index in range(tasks.size())]
    return [RunningTask(task.index(), task.executorId(), task.host()) for task in found if task.status() == "RUNNING"]
