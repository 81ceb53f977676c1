"""The executor that a rank runs in, as the rank sees it: a stopped one brings no result home. Runs on a rank."""

from contextlib import suppress

import psutil

__all__ = ["end_stopped", "is_stopped", "own_executor"]


def own_executor() -> psutil.Process | None:
    """The JVM that runs this process: its parent, or the parent of the daemon that forked it. None without Spark."""
    with suppress(psutil.Error):  # a parent that ends meanwhile is none
        for process in psutil.Process().parents()[:2]:
            if process.name() == "java":
                return process
    return None


def is_stopped(executor: psutil.Process | None) -> bool:
    """Whether somebody has sent it SIGSTOP, and nobody SIGCONT."""
    with suppress(psutil.Error):
        return executor is not None and bool(executor.status() == psutil.STATUS_STOPPED)
    return False


def end_stopped(executor: psutil.Process | None) -> None:
    """Kill an executor that is stopped, so that Spark replaces it at once.

    It does not hear that it shall end: Spark's own worker asks it to, and kills it ten seconds later.
    """
    if executor is not None and is_stopped(executor):
        with suppress(psutil.Error):
            executor.kill()
