"""The executor in which a rank runs, seen from the rank. A stopped executor returns no results. Runs on a rank."""

from collections.abc import Sequence
from contextlib import suppress

import psutil

__all__ = ["end_stopped", "is_stopped", "own_executor"]


def own_executor() -> Sequence[psutil.Process]:
    """The ancestors of this process up to the executor's JVM: the worker, the daemon, the JVM. Empty without Spark.

    Between a rank and its worker, there may be two more processes (:mod:`~sparkdl.forks`).
    """
    with suppress(psutil.Error):  # a parent has ended meanwhile
        parents: list[psutil.Process] = psutil.Process().parents()[:5]
        for place, process in enumerate(parents):
            if process.name() == "java":
                return parents[: place + 1] if place < 3 or _is_daemon(parents[place - 1]) else ()
    return ()


def is_stopped(executor: Sequence[psutil.Process]) -> bool:
    """Whether one of these processes is stopped: it has received SIGSTOP, and no SIGCONT."""
    return any(map(_is_stopped, executor))


def end_stopped(executor: Sequence[psutil.Process]) -> None:
    """Kill the processes that are stopped, so that Spark replaces the executor at once.

    Stopped processes do not react to requests to end. Spark's worker node asks a JVM to end, and kills it ten seconds
    later; a daemon ends after its JVM. With ``executors.py`` alone, a stopped JVM lived up to 15.7 s beyond its
    timeout; with this function, 1.6 s.
    """
    for process in filter(_is_stopped, executor):
        with suppress(psutil.Error):
            process.kill()


def _is_daemon(process: psutil.Process) -> bool:
    """Whether this is the daemon from which an executor's workers are forked, not a driver started by a JVM."""
    return any(part.endswith(".daemon") for part in process.cmdline())


def _is_stopped(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return bool(process.status() == psutil.STATUS_STOPPED)
    return False
