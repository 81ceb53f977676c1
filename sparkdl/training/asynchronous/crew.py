"""The tasks of an asynchronous run: starts servers and workers, and replaces those that end.

Runs where the coordinator does.
"""

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Self

from sparkdl.cluster import spark_reason
from sparkdl.cluster.barrier import CANCELLED
from sparkdl.cluster.watchdog import PROCESS_DEATH
from sparkdl.errors import NotEnoughSlotsError, RankError, RunCancelledError
from sparkdl.settings import Cluster
from sparkdl.training.asynchronous.coordinator import Coordinator
from sparkdl.training.asynchronous.line import Role
from sparkdl.training.asynchronous.starter import Starter
from sparkdl.training.attempts import Budget
from sparkdl.training.checkpoints.checkpoint_folder import step_of

__all__ = ["Crew"]

log = logging.getLogger(__name__)

POLL_SECONDS = 0.3  # between two checks of the tasks
FAREWELL_SECONDS = 5.0  # how long tasks may take to end by themselves at the end of a run


class Crew:
    """Starts servers first, so that they get slots, then as many workers as fit. Used as a context manager.

    When a task's process dies, Spark retries the task first, and then the crew does. An exception of the task's code
    is reported to the driver at once, and the crew starts the task again within its budget of restarts.
    """

    def __init__(self, cluster: Cluster, starter: Starter, coordinator: Coordinator) -> None:
        self._coordinator, self._cluster, self._starter = coordinator, cluster, starter
        self._deaths = Budget(cluster.max_restarts * cluster.ranks.max, 0.0)  # all workers of an executor die with it
        self._failures = Budget(cluster.max_restarts, 0.0)
        self._running: dict[tuple[Role, int], Future[list[str]]] = {}
        self._started = time.monotonic()

    def __enter__(self) -> Self:
        self._start_missing()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all tasks; after a run that succeeded, they get some seconds to end by themselves."""
        self._coordinator.dismiss()
        deadline = time.monotonic() + (FAREWELL_SECONDS if error is None else 0.0)
        while time.monotonic() < deadline and not all(future.done() for future in self._running.values()):
            time.sleep(POLL_SECONDS)
        self._starter.cancel(*self._running.values())

    def wait(self, condition: Callable[[], bool], watch: Callable[[], None]) -> None:
        """Return when the condition is true; until then replace tasks that end, and call ``watch`` regularly.

        Raises :class:`RankError` when tasks fail more often than allowed, :class:`RunCancelledError` when they are
        cancelled from outside, and what ``watch`` raises.
        """
        while True:
            self._coordinator.wait(condition, seconds=POLL_SECONDS)
            self._look()
            watch()
            if condition():
                return

    def wait_for_all(self, watch: Callable[[], None]) -> None:
        """Return when all servers serve and the minimum of workers has joined. Raises :class:`NotEnoughSlotsError`."""
        cluster, coordinator = self._cluster, self._coordinator
        self._started, limit = time.monotonic(), cluster.slot_timeout + cluster.start_timeout

        def look() -> None:
            watch()
            if time.monotonic() - self._started > limit:
                raise NotEnoughSlotsError(
                    f"{cluster.servers} servers and {cluster.ranks.min} workers were to start; after {limit:g} s there"
                    f" are {coordinator.count('server')} and {coordinator.count('worker')}. Lower cluster.servers or"
                    " cluster.num_ranks, give the application more executors, or raise cluster.start_timeout"
                )

        self.wait(lambda: coordinator.serving and coordinator.count("worker") >= cluster.ranks.min, look)

    def _start(self, role: Role, number: int) -> None:
        self._running[role, number] = self._starter.start(role, number, self._coordinator.invitation)

    def _look(self) -> None:
        """Replace the tasks that have ended or fallen silent."""
        while self._coordinator.reports:
            report = self._coordinator.reports.pop(0)
            self._lost(
                report.role, report.number, report.failure["type"], report.failure["reason"], report.failure["text"]
            )
        silent = [key for key in self._coordinator.silent() if key in self._running]
        for role, number in silent:
            log.warning("%s %d has said nothing for %g s", role, number, self._cluster.silence_timeout)
            self._starter.cancel(self._running[role, number])
        for (role, number), future in list(self._running.items()):
            if not future.done():
                continue
            if error := future.exception():
                text = spark_reason(error)
                if CANCELLED.search(text) and (role, number) not in silent:
                    raise RunCancelledError(f"the run was cancelled from outside. {text}")
                self._lost(role, number, PROCESS_DEATH, text.splitlines()[-1], text)
            self._coordinator.lose(role, number)
            del self._running[role, number]
        self._start_missing()

    def _start_missing(self) -> None:
        """Start missing servers, or, when all servers serve, missing workers.

        Spark gives a free slot to the task that has waited longest. Waiting workers would get the slots that
        servers need, and then wait for those servers.
        """
        servers, workers = self._cluster.servers, self._cluster.ranks.max
        if missing := [number for number in range(servers) if ("server", number) not in self._running]:
            waiting = [key for key in self._running if key[0] == "worker" and not self._coordinator.has(*key)]
            self._starter.cancel(*(self._running.pop(key) for key in waiting))
            for number in missing:
                self._start("server", number)
        elif self._coordinator.serving:
            for number in range(workers):
                if ("worker", number) not in self._running:
                    self._start("worker", number)

    def _lost(self, role: Role, number: int, kind: str, reason: str, text: str) -> None:
        """Give a lost task's work to others. Raises :class:`RankError` when the budget of restarts is spent."""
        member, step = self._coordinator.lose(role, number), step_of(self._coordinator.checkpoint)
        place = f" on {member.place}" if member else ""
        lost = f"; its slices go back to step {step}, and what was pushed since is lost" if role == "server" else ""
        log.warning("%s %d failed%s: %s%s", role, number, place, reason, lost)
        told = f"{text.rstrip()}\n\n{role} {number} failed{place}"
        error = RankError(told, rank=number if role == "worker" else None, exception_type=kind, reason=reason)
        if role == "worker" and kind == PROCESS_DEATH:
            self._deaths.spend(error, self._coordinator.done)  # costs no progress while portions get done
        else:
            self._failures.spend(error, step)
