"""The executor that a rank runs in, as the rank sees it: a stopped one brings no result home. Runs on a rank."""

from collections.abc import Sequence
from contextlib import suppress

import psutil

__all__ = ["end_stopped", "is_stopped", "own_executor"]


def own_executor() -> Sequence[psutil.Process]:
    """The JVM that runs this process, and before it what forked this process: daemon, worker. Empty without Spark.

    Between a rank and its worker, there may be two more processes (:mod:`~sparkdl.forks`).
    """
    with suppress(psutil.Error):  # a parent that ends meanwhile is none
        parents: list[psutil.Process] = psutil.Process().parents()[:5]
        for place, process in enumerate(parents):
            if process.name() == "java":
                return parents[: place + 1] if place < 3 or _is_daemon(parents[place - 1]) else ()
    return ()


def is_stopped(executor: Sequence[psutil.Process]) -> bool:
    """Whether somebody has sent one of its processes SIGSTOP, and nobody SIGCONT."""
    return any(map(_is_stopped, executor))


def end_stopped(executor: Sequence[psutil.Process]) -> None:
    """Kill what is stopped, so that Spark replaces it at once.

    It does not hear that it shall end: Spark's own worker asks a JVM to, and kills it ten seconds later; a daemon ends
    when its JVM does, if it can. Without this a stopped JVM outlived its silence by up to 15.7 s (``executors.py`` was
    alone with it), and with it by 1.6.
    """
    for process in filter(_is_stopped, executor):
        with suppress(psutil.Error):
            process.kill()


def _is_daemon(process: psutil.Process) -> bool:
    """Whether executors' workers are forked from it, and not a driver whose JVM has started it."""
    return any(part.endswith(".daemon") for part in process.cmdline())


def _is_stopped(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return bool(process.status() == psutil.STATUS_STOPPED)
    return False
