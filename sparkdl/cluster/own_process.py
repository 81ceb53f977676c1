"""A rank in a process of its own: a fork of Spark's Python worker, which stays as it was. Runs in a rank's task.

What a program leaves behind (state that libraries keep for all of a process, threads, a CUDA context, processes that it
has started) ends with it, and the worker is there for the next run.
"""

import ctypes
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

import cloudpickle
import psutil

from sparkdl.cluster.rank import RankResult

__all__ = ["can_fork", "run_in_fork"]

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def can_fork() -> bool:
    """Whether a fork of this process can compute: it has no threads but Python's, such as those of OpenMP or CUDA.

    A fork has none of them, and waits for them for ever.
    """
    return bool(psutil.Process().num_threads() <= threading.active_count())


def run_in_fork(run: Callable[[], RankResult]) -> RankResult:
    """What ``run`` returns or raises in a new process, which ends with it, and with this process.

    Ends this process, too, where the new one is killed: Spark sees that as it sees any other worker's death.
    """
    result, worker = os.memfd_create("sparkdl-result"), os.getpid()
    pid = os.fork()
    if not pid:
        try:
            _be_rank(run, result, worker)
        finally:
            os._exit(1)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # what the program has started
    _, status = os.waitpid(pid, 0)
    with os.fdopen(result, "rb") as file:
        if status:
            os._exit(1)
        file.seek(0)
        outcome, error = pickle.load(file)  # written by our own fork
    if error is not None:
        raise error
    return RankResult(*outcome)


def _be_rank(run: Callable[[], RankResult], result: int, worker: int) -> None:
    os.setsid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != worker:
        return
    outcome, error = None, None
    try:
        ended = run()
        outcome = ended.rank, ended.result
    except Exception as raised:
        error = raised
    with os.fdopen(result, "wb") as file:
        file.write(cloudpickle.dumps((outcome, error)))
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(0)
