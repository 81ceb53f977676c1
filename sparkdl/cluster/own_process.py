"""Runs a rank in its own process, a fork of Spark's Python worker, which stays unchanged. Runs in a rank's task.

Everything that a program leaves behind (process-wide state of libraries, threads, a CUDA context, child processes) ends
with the fork, and the worker can be reused.
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
    """Whether a fork of this process can compute: only if all threads are Python's, and none of OpenMP or CUDA.

    A fork does not inherit threads, and would wait for them forever.
    """
    return bool(psutil.Process().num_threads() <= threading.active_count())


def run_in_fork(run: Callable[[], RankResult]) -> RankResult:
    """Call ``run`` in a new process, and return or raise the same. The new process ends afterwards, or with this one.

    If the new process is killed, this process ends, too, so that Spark treats it as the death of a worker.
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
        os.killpg(pid, signal.SIGKILL)  # also processes that the program has started
    _, status = os.waitpid(pid, 0)
    with os.fdopen(result, "rb") as file:
        if status:
            os._exit(1)
        file.seek(0)
        outcome, error = pickle.load(file)  # safe: written by our own fork
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
