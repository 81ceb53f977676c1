"""Runs one function per rank in processes on the driver, without a cluster or Spark."""

import logging
import os
import pickle
import struct
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import IO, TypeVar

from typing_extensions import override

from sparkdl.cluster.backend import LaunchBackend
from sparkdl.cluster.devices import device_of_process, threads_of_process
from sparkdl.cluster.launch import Launch, LogVerbosity, OnMessage, StageEnd, Workers
from sparkdl.cluster.pickling import pickle_function
from sparkdl.cluster.rank import Assignment, Rank, RankResult, run_rank
from sparkdl.cluster.rendezvous import place_of
from sparkdl.cluster.watchdog import Timeouts
from sparkdl.errors import ConfigError
from sparkdl.forks import Fork

__all__ = ["Processes", "main", "receive", "run_local", "send"]

T = TypeVar("T")
LOOPBACK, LOCALHOST = "127.0.0.1", "localhost"
EXIT_SECONDS = 30.0  # how long processes may take to end (threads, exit handlers) after all functions have returned
LENGTH = ">Q"  # the format of a message's length in bytes, which comes first

logger = logging.getLogger("sparkdl")


def run_local(
    function: Callable[[Rank], T],
    num_ranks: int,
    *,
    backend: LaunchBackend | None = None,
    on_message: OnMessage | None = None,
    log_verbosity: LogVerbosity = "all",
    timeouts: Timeouts | None = None,
    stop: threading.Event | None = None,
) -> list[T]:
    """Call ``function(rank)`` in ``num_ranks`` new processes on the driver; return the results by rank.

    Otherwise like :func:`~sparkdl.cluster.run_ranks`. Each process has an equal share of the cores, and the GPU with
    its own number, if there is one.
    """
    if num_ranks < 1:
        raise ConfigError(f"at least one rank is needed, not {num_ranks}")
    pickled = pickle_function(function)
    with Launch(num_ranks, bind_address=LOOPBACK, host=LOOPBACK, timeouts=timeouts or Timeouts(), stop=stop) as launch:
        assignment = launch.assignment(pickled, backend, log_verbosity)
        processes = Processes([LOCALHOST] * num_ranks, {LOCALHOST: main}, assignment, launch)
        return launch.follow(processes, on_message)


class Processes(Workers):
    """One process per rank. It gets its assignment through stdin, which stays open until the driver ends.

    ``hosts`` is the host of each rank. ``mains`` is the function that processes of each host call: :func:`main`, after
    moving to that host if necessary.
    """

    def __init__(
        self,
        hosts: Sequence[str],
        mains: Mapping[str, Callable[[int], None]],
        assignment: Assignment,
        launch: Launch,
    ) -> None:
        self._hosts, self._mains = hosts, mains
        self._assignment, self._events = assignment, launch.events
        self._processes: list[Fork] = []

    @override
    def start(self) -> None:
        for host in self._hosts:
            self._processes.append(Fork(self._mains[host]))
        for rank, process in enumerate(self._processes):
            with suppress(OSError):  # the process has already ended: its exit code shows why
                send(process.stdin, pickle.dumps((self._assignment, rank, self._hosts)))
        threading.Thread(target=self._wait, name="sparkdl-local", daemon=True).start()

    @override
    def cancel(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()

    @override
    def queued(self) -> bool:
        return False

    @override
    def place(self, rank: int, others: Collection[int]) -> str:
        return f"this host (process {self._processes[rank].pid})"

    @override
    def leaving(self) -> bool:
        return False

    @override
    def give_up(self, task: int) -> None:
        """Does nothing: all ranks are on the driver's host."""

    def _wait(self) -> None:
        outcomes, errors = [], []
        for rank, process in enumerate(self._processes):
            with process.result:
                outcomes.append(RankResult(rank, receive(process.result)))
            with suppress(OSError):
                process.stdin.close()
        deadline = time.monotonic() + EXIT_SECONDS
        for process, outcome in zip(self._processes, outcomes, strict=True):
            ending = _ending(process, deadline)
            if process.returncode and outcome.result:
                logger.warning("rank %d returned its result, and then its process %s", outcome.rank, ending)
            elif process.returncode:
                errors.append(f"the process of rank {outcome.rank} {ending}")
        self._events.put(StageEnd(outcomes, ", ".join(errors) or None))


def main(result_fd: int) -> None:
    """Run one rank: read the assignment from stdin, and write the result to a pipe. Runs on a rank."""
    os.set_inheritable(result_fd, False)  # processes that the function starts must not hold the pipe open
    assignment, rank, hosts = pickle.loads(receive(sys.stdin.buffer) or b"")
    place = place_of(rank, hosts)
    outcome = run_rank(
        assignment, place, device=device_of_process(place.local_rank), threads=threads_of_process(place.local_size)
    )
    with os.fdopen(result_fd, "wb") as pipe:
        send(pipe, outcome.result or b"")


def _ending(process: Fork, deadline: float) -> str:
    """How a process ended whose function has returned. If it still runs at the deadline, it is killed."""
    try:
        code = process.wait(max(deadline - time.monotonic(), 0))
    except TimeoutError:
        process.kill()
        process.wait()
        return f"was killed, because it did not end within {EXIT_SECONDS:g} s: it may have a non-daemon thread"
    return f"ended with code {code}"


def send(stream: IO[bytes], content: bytes) -> None:
    """Write a message for :func:`receive`."""
    stream.write(struct.pack(LENGTH, len(content)) + content)
    stream.flush()


def receive(stream: IO[bytes]) -> bytes | None:
    """The next message; None if it is empty, or if the sender ended before it was complete."""
    head = stream.read(struct.calcsize(LENGTH))
    (length,) = struct.unpack(LENGTH, head) if len(head) == struct.calcsize(LENGTH) else (0,)
    content = stream.read(length)
    return content if content and len(content) == length else None
