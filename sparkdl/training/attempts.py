"""Attempts: what happens after a failure, and with how many ranks the run goes on. Runs on the driver.

Spark does not retry a barrier stage whose results are collected, so this does: from the last good checkpoint, with as
many ranks as there are slots.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from pyspark.sql import SparkSession

from sparkdl.cluster import OnMessage, Timeouts, count_ranks, run_ranks, wait_for_ranks
from sparkdl.errors import (
    CheckpointError,
    ConfigError,
    DamagedCheckpointError,
    DataError,
    DatasetError,
    ExitCode,
    ModelError,
    RankError,
    TrainingError,
)
from sparkdl.sessions import is_gone
from sparkdl.settings import Cluster
from sparkdl.training.checkpoints.checkpoint_folder import latest, remove_leftovers, step_of
from sparkdl.training.job import Job, TrainingResult
from sparkdl.training.loop import train_rank

__all__ = ["Budget", "RunStopped", "repeat", "run_attempts", "told"]

T = TypeVar("T")

log = logging.getLogger(__name__)

LONGEST_PAUSE = 60.0  # seconds
GROWTH_SECONDS = 10.0  # between two checks for more slots, in a run with fewer ranks than allowed
FINAL = {
    f"{error.__module__}.{error.__name__}": error
    for error in (ConfigError, DataError, DatasetError, ModelError, TrainingError)
}
"""Errors that another attempt would meet again."""
DAMAGED = f"{DamagedCheckpointError.__module__}.{DamagedCheckpointError.__name__}"


class RunStopped(Exception):  # noqa: N818 - nothing went wrong
    """Ranks have ended on request, after writing a checkpoint."""


@dataclass
class Budget:
    """Decides whether a failed run is restarted."""

    max_restarts: int
    first_pause: float
    _streak: list[RankError] = field(default_factory=list)
    _step: int = -1

    def spend(self, error: RankError, step: int) -> float:
        """Seconds to wait before the next attempt, which begins at ``step``.

        A newer checkpoint than at the last failure refills the budget. Raises the error when the budget is spent, or
        when the user's code has failed twice in the same way at the same step; the message begins with the first cause.
        """
        if step > self._step:
            self._streak.clear()
        self._step = step
        if error.exception_type in FINAL:
            raise FINAL[error.exception_type](error.reason) from None
        again = next((other for other in self._streak if _same(other, error)), None)
        self._streak.append(error)
        if again is not None and not _from_outside(error):
            raise told(again, f"it failed again in the same way when it was tried again from step {step}")
        if len(self._streak) > self.max_restarts:
            if not self.max_restarts:
                raise error
            restarts = f"{self.max_restarts} more attempt{'s' if self.max_restarts > 1 else ''} from step {step}"
            last = error.reason.strip().splitlines()[-1:] or [str(error).strip().splitlines()[0]]
            raise told(self._streak[0], f"{restarts} failed too, the last one with: {last[0]}")
        return float(min(self.first_pause * 2 ** (len(self._streak) - 1), LONGEST_PAUSE))


def run_attempts(
    job: Job,
    cluster: Cluster,
    spark: SparkSession,
    *,
    on_message: OnMessage,
    on_checkpoint: Callable[[str], None],
    checkpoint: str | None = None,
    description: str = "",
    stop: threading.Event | None = None,
) -> TrainingResult:
    """Train in as many attempts as it takes, the first one from ``checkpoint`` if there is one.

    ``on_message`` is called with a rank and its message, ``on_checkpoint`` with each checkpoint before an attempt
    resumes from it. ``description`` is that of Spark's jobs. When ``stop`` is set, ranks write a checkpoint and end,
    and :class:`RunStopped` is raised; a run with ``stop`` does not look for more slots.

    Raises :class:`RankError` when the restarts are used up or the checkpoint to resume from cannot be read,
    :class:`~sparkdl.errors.NotEnoughSlotsError`, and errors that no restart would change, for example
    :class:`TrainingError` when the loss is not finite.
    """

    def attempt(job: Job) -> TrainingResult | None:
        return _attempt(job, cluster, spark, on_message, description, stop)

    return repeat(attempt, job, cluster, spark, on_checkpoint=on_checkpoint, checkpoint=checkpoint)


def repeat(
    attempt: Callable[[Job], T | None],
    job: Job,
    cluster: Cluster,
    spark: SparkSession,
    *,
    on_checkpoint: Callable[[str], None],
    checkpoint: str | None,
) -> T:
    """Repeat an attempt until it returns a result; one that raises :class:`RankError` or returns None is repeated.

    Each attempt gets a job with the checkpoint to resume from. See :func:`run_attempts`.
    """
    budget = Budget(cluster.max_restarts, cluster.restart_seconds)
    while True:
        remove_leftovers(job.folder)
        if checkpoint:
            on_checkpoint(checkpoint)
        try:
            outcome = attempt(replace(job, checkpoint=checkpoint))
        except RankError as error:
            if is_gone(spark):
                raise
            if error.exception_type == DAMAGED:
                log.warning("%s; using the one before it", error.reason)
                remove_leftovers(job.folder, damaged=checkpoint)
            try:
                checkpoint = latest(job.folder)
            except CheckpointError as lost:
                budget.spend(error, step_of(checkpoint))  # raises errors that no attempt would change
                raise told(error, f"there was no other attempt: {lost}") from None
            pause = budget.spend(error, step_of(checkpoint))
            log.warning("%s\n\nanother attempt goes on from step %d in %g s", error, step_of(checkpoint), pause)
            time.sleep(pause)
        else:
            if outcome is not None:
                return outcome
            checkpoint = latest(job.folder)
            log.info("going on from step %d", step_of(checkpoint))


def _attempt(
    job: Job,
    cluster: Cluster,
    spark: SparkSession,
    on_message: OnMessage,
    description: str,
    stopped: threading.Event | None,
) -> TrainingResult | None:
    """Run one barrier stage; None when it was stopped to continue with more ranks, or in other slots."""
    size = wait_for_ranks(spark, cluster)
    with nullcontext(stopped) if stopped else _growth(spark, size, cluster) as stop:
        outcomes = run_ranks(
            partial(train_rank, job),
            size,
            spark=spark,
            backend=job.backend,
            on_message=on_message,
            description=description,
            slot_timeout=cluster.slot_timeout,
            resources=cluster.resources,
            timeouts=Timeouts(
                start_timeout=cluster.start_timeout,
                silence_timeout=cluster.silence_timeout,
                stall_timeout=cluster.stall_timeout,
            ),
            stop=stop,
            preemption_notice=cluster.preemption_notice,
        )
    if stopped and stopped.is_set() and outcomes[0] is None:
        raise RunStopped
    return outcomes[0]


@contextmanager
def _growth(spark: SparkSession, size: int, cluster: Cluster) -> Iterator[threading.Event]:
    """An event that is set when slots are free for a run with fewer ranks than allowed."""
    stop, ended = threading.Event(), threading.Event()

    def look() -> None:
        while not ended.wait(GROWTH_SECONDS):
            if (count_ranks(spark, cluster.resources) or 0) > size:
                log.info("more slots are free: ranks write a checkpoint, and the run continues with more of them")
                stop.set()
                return

    if size < (most := cluster.ranks.max):
        log.warning("going on with %d ranks instead of %d: there are no more slots now", size, most)
        threading.Thread(target=look, name="sparkdl-growth", daemon=True).start()
    try:
        yield stop
    finally:
        ended.set()


def _same(one: RankError, other: RankError) -> bool:
    return (one.exception_type, one.reason, one.step) == (other.exception_type, other.reason, other.step)


def _from_outside(error: RankError) -> bool:
    """Whether the cause may be outside the user's code, so that another attempt may succeed after equal failures."""
    return error.exit_code != ExitCode.USER


def told(error: RankError, more: str) -> RankError:
    """The same error with a line added at its end."""
    return RankError(
        f"{error}\n\n{more}",
        rank=error.rank,
        exception_type=error.exception_type,
        reason=error.reason,
        step=error.step,
        host=error.host,
    )
