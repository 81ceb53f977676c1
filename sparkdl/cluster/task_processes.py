"""Runs several ranks in one task: one process per GPU of the task. Runs in a task.

The processes are forked from one that the task's Python worker starts for them and keeps. So they are affected neither
by threads of OpenMP or CUDA in the worker, nor by anything that an earlier run has left behind.
"""

import os
import pickle
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress

from sparkdl.cluster.local import receive, send
from sparkdl.cluster.rank import Assignment, RankResult, run_rank
from sparkdl.cluster.rendezvous import Place
from sparkdl.forks import Fork

__all__ = ["run_in_processes"]


def run_in_processes(
    assignment: Assignment, places: Sequence[Place], devices: Sequence[str], *, threads: int
) -> list[RankResult]:
    """Run a rank on each of these devices at the same time, wait for all, and return their results.

    If one of the ranks is killed, this process ends, and the other ranks with it, so that Spark treats it as the death
    of a worker.
    """
    forks: list[Fork] = []
    try:
        for place, device in zip(places, devices, strict=True):
            forks.append(Fork(_main))
            with suppress(OSError):  # the process has already ended: its exit code shows why
                send(forks[-1].stdin, pickle.dumps((assignment, place, device, threads)))
        outcomes = []
        for place, fork in zip(places, forks, strict=True):
            with fork.result:
                content = receive(fork.result)
            if content is None:
                os._exit(1)
            outcomes.append(RankResult(place.rank, pickle.loads(content)))
    finally:
        for fork in forks:
            fork.kill()
            fork.wait()
    return outcomes


def _main(result_fd: int) -> None:
    """Run one rank: read from stdin which one, and write the result to a pipe. Runs on a rank."""
    os.set_inheritable(result_fd, False)  # processes that the function starts must not hold the pipe open
    assignment, place, device, threads = pickle.loads(receive(sys.stdin.buffer) or b"")
    threading.Thread(target=_end_with_worker, name="sparkdl-worker", daemon=True).start()
    outcome = run_rank(assignment, place, device=device, threads=threads)
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    with os.fdopen(result_fd, "wb") as pipe:
        send(pipe, pickle.dumps(outcome.result))


def _end_with_worker() -> None:
    """Wait until stdin is closed, which means that the task's worker has ended, and end, too."""
    os.read(sys.stdin.fileno(), 1)
    os.killpg(0, signal.SIGKILL)
