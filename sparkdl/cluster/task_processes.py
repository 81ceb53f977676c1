"""Several ranks in one task: a process for each of the task's GPUs. Runs in a task.

They are forks of a process that the task's Python worker starts for them, and keeps: neither what the worker has
computed with, in threads of OpenMP or CUDA, is in their way, nor what an earlier run has left behind.
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
    """Run a rank on each of these devices at the same time; return how they have ended, when the last one has.

    Ends this process where one of the ranks is killed: Spark sees that as it sees any other worker's death. The other
    ranks end with it.
    """
    forks: list[Fork] = []
    try:
        for place, device in zip(places, devices, strict=True):
            forks.append(Fork(_main))
            with suppress(OSError):  # it has ended already: its code says so
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
    """Be one rank: read from stdin which, write the result to a pipe. Runs on a rank."""
    os.set_inheritable(result_fd, False)  # what the function starts may outlive it, and shall not hold the pipe open
    assignment, place, device, threads = pickle.loads(receive(sys.stdin.buffer) or b"")
    threading.Thread(target=_end_with_worker, name="sparkdl-worker", daemon=True).start()
    outcome = run_rank(assignment, place, device=device, threads=threads)
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    with os.fdopen(result_fd, "wb") as pipe:
        send(pipe, pickle.dumps(outcome.result))


def _end_with_worker() -> None:
    """Wait for the end of stdin, which is that of the task's worker."""
    os.read(sys.stdin.fileno(), 1)
    os.killpg(0, signal.SIGKILL)
