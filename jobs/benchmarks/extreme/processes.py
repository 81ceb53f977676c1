"""Measured code runs in processes of its own: its threads, its memory and what it prints disturb nobody else."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

import psutil

__all__ = ["alone", "cpu_seconds", "forget_peak", "peak_bytes", "quietly", "servant"]

T = TypeVar("T")
_SPAWN = get_context("spawn")  # a fork would inherit Spark's sockets and the state of PyTorch's threads


def alone(function: Callable[..., T], *args: Any, log: Path) -> T:
    """Call a function in a new process and give what it returns; what it prints goes to ``log``.

    Raises what the function raises, or BrokenProcessPool if the process dies.
    """
    pool = ProcessPoolExecutor(1, mp_context=_SPAWN, initializer=quietly, initargs=(log,))
    with pool as process:
        return process.submit(function, *args).result()


@contextmanager
def servant(function: Callable[..., None], *args: Any, log: Path) -> Iterator[Connection]:
    """A process that calls ``function(connection, *args)``, and the other end of the connection; None ends it."""
    mine, its = _SPAWN.Pipe()
    process = _SPAWN.Process(target=_serve, args=(function, its, log, *args), daemon=True)
    process.start()
    its.close()
    try:
        yield mine
        mine.send(None)
        process.join(60)
    finally:
        process.kill()
        process.join()


def _serve(function: Callable[..., None], connection: Connection, log: Path, *args: Any) -> None:
    quietly(log)
    function(connection, *args)


def quietly(log: Path) -> None:
    """From here on, write what this process and its libraries print to a file."""
    # Whoever was started by spark-submit must not take its parent's JVM for its own.
    for name in ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"):
        os.environ.pop(name, None)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for standard in (1, 2):
        os.dup2(file, standard)


def cpu_seconds() -> float:
    """What this process, all that it has started and all that these have waited for have spent on CPUs so far.

    Unlike the time on a clock, it hardly depends on what else the machine does.
    """
    total = 0.0
    for process in (own := psutil.Process(), *own.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # what it has spent is its parent's now
            total += sum(process.cpu_times()[:4])
    return total


def forget_peak() -> None:
    """Let :func:`peak_bytes` count from now on; Spark gives a Python process one task after another."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_bytes() -> int:
    """The most memory that this process has had (its resident set), from what Linux says of it."""
    (peak,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(peak.split()[1]) * 1024
