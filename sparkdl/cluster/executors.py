"""Which executors hold the tasks of a stage, and getting rid of one that does not let go. Runs on the driver."""

import logging
import time
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

from sparkdl.sessions import JVM_ERRORS, is_local

__all__ = ["RunningTask", "end_tasks", "running_tasks"]

POLL_SECONDS = 0.2
TASK_SECONDS = (
    5.0  # what a healthy executor needs at most to end a cancelled task: Spark kills its Python after 2 + 2 s
)

logger = logging.getLogger("sparkdl")


class RunningTask(NamedTuple):
    """A task that Spark believes to run, and where."""

    partition: int
    executor: str
    host: str


def running_tasks(spark: SparkSession, tag: str) -> list[RunningTask]:
    """The tasks of the jobs with a tag that have not ended, as far as the driver knows."""
    tracker = spark.sparkContext.statusTracker()
    tagged = spark._jsc.sc().statusTracker().getJobIdsForTag(tag)
    jobs = filter(None, map(tracker.getJobInfo, tagged))
    return [task for job in jobs for stage in job.stageIds for task in _running(spark, stage)]


def end_tasks(spark: SparkSession, tag: str) -> None:
    """Return when the tasks of a cancelled job have ended; an executor that does not end them is replaced.

    A stopped JVM, or one whose Python cannot be killed, would hold its slots until Spark gives it up after two minutes,
    and the next stage would wait for them.
    """
    deadline = time.monotonic() + TASK_SECONDS
    while tasks := running_tasks(spark, tag):
        if time.monotonic() > deadline:
            break
        time.sleep(POLL_SECONDS)
    if is_local(spark):
        return  # the executor is the driver
    for executor, host in {(task.executor, task.host) for task in tasks}:
        logger.warning("executor %s on host %s does not end its tasks; Spark is asked for another one", executor, host)
        try:
            spark._jsc.sc().killAndReplaceExecutor(executor)
        except JVM_ERRORS as error:
            logger.warning("Spark cannot replace executor %s: %s", executor, str(error).partition("\n")[0])


def _running(spark: SparkSession, stage: int) -> list[RunningTask]:
    try:
        tasks: Any = spark._jsc.sc().statusStore().taskList(stage, 0, 1 << 20)
    except JVM_ERRORS:
        return []  # the stage has not been submitted, or Spark has forgotten it
    found = [tasks.apply(index) for index in range(tasks.size())]
    return [RunningTask(task.index(), task.executorId(), task.host()) for task in found if task.status() == "RUNNING"]
