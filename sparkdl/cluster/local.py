"""Run one function per rank in processes on the driver: no cluster, no Spark."""

import os
import pickle
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import BinaryIO, TypeVar

from sparkdl.cluster.devices import device_of_process, threads_of_process
from sparkdl.cluster.pickling import pickle_function
from sparkdl.cluster.rank import Assignment, Outcome, Rank, run_rank
from sparkdl.cluster.rendezvous import place_of
from sparkdl.cluster.supervision import Finished, LogVerbosity, OnMessage, Supervision
from sparkdl.cluster.watch import Watch
from sparkdl.environment import HUGE_PAGES
from sparkdl.errors import ConfigError
from sparkdl.garbage import end_without_collection

__all__ = ["main", "run_local"]

T = TypeVar("T")
LOOPBACK = "127.0.0.1"


def run_local(
    function: Callable[[Rank], T],
    num_ranks: int,
    *,
    on_message: OnMessage | None = None,
    log_verbosity: LogVerbosity = "all",
    watch: Watch | None = None,
    stop: threading.Event | None = None,
) -> list[T]:
    """Call ``function(rank)`` in ``num_ranks`` new processes on the driver; return the results by rank.

    Otherwise like :func:`~sparkdl.cluster.run_ranks`. Each process has an equal share of the cores, and the GPU of its
    number if there is one.
    """
    if num_ranks < 1:
        raise ConfigError(f"at least one rank is needed, not {num_ranks}")
    pickled = pickle_function(function)
    with Supervision(num_ranks, bind_address=LOOPBACK, host=LOOPBACK, watch=watch or Watch(), stop=stop) as supervision:
        processes = _Processes(num_ranks, supervision.assignment(pickled, log_verbosity), supervision)
        return supervision.follow(processes, on_message)


class _Processes:
    """One process per rank. Its assignment comes through stdin, which stays open: its end is the driver's end."""

    def __init__(self, num_ranks: int, assignment: Assignment, supervision: Supervision) -> None:
        self._num_ranks, self._assignment, self._events = num_ranks, assignment, supervision.events
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        environment = HUGE_PAGES | os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        pipes = []
        for rank in range(self._num_ranks):
            read_fd, write_fd = os.pipe()
            command = [sys.executable, "-c", f"from sparkdl.cluster.local import main; main({write_fd})"]
            # A session of its own: Ctrl-C reaches the driver alone, which then ends the ranks in order.
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, env=environment, pass_fds=[write_fd], start_new_session=True
            )
            os.close(write_fd)
            self._processes.append(process)
            pipes.append(os.fdopen(read_fd, "rb"))
            _send(process, pickle.dumps((self._assignment, rank, self._num_ranks)))
        threading.Thread(target=self._wait, args=(pipes,), name="sparkdl-local", daemon=True).start()

    def cancel(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()

    def place(self, rank: int) -> str:
        return f"this host (process {self._processes[rank].pid})"

    def _wait(self, pipes: list[BinaryIO]) -> None:
        outcomes = []
        for rank, (process, pipe) in enumerate(zip(self._processes, pipes, strict=True)):
            with pipe:
                outcomes.append(Outcome(rank, pipe.read() or None))
            if process.stdin:
                process.stdin.close()
            process.wait()
        codes = {rank: process.returncode for rank, process in enumerate(self._processes) if process.returncode}
        error = ", ".join(f"the process of rank {rank} ended with code {code}" for rank, code in codes.items())
        self._events.put(Finished(outcomes, error or None))


def main(result_fd: int) -> None:
    """Be one rank: read the assignment from stdin, write the result to a pipe. Runs on a rank."""
    end_without_collection()
    assignment, rank, size = pickle.loads(_receive(sys.stdin.buffer))
    place = place_of(rank, ["localhost"] * size)
    outcome = run_rank(
        assignment, place, device=device_of_process(place.local_rank), threads=threads_of_process(place.local_size)
    )
    with os.fdopen(result_fd, "wb") as pipe:
        pipe.write(outcome.result or b"")


def _send(process: subprocess.Popen[bytes], assignment: bytes) -> None:
    if process.stdin:
        process.stdin.write(struct.pack(">Q", len(assignment)) + assignment)
        process.stdin.flush()


def _receive(stream: BinaryIO) -> bytes:
    (length,) = struct.unpack(">Q", stream.read(8))
    return stream.read(length)
