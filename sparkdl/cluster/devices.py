"""The GPU, the cores and the number of threads of a rank."""

import ctypes
import os
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path

from pyspark import TaskContext

from sparkdl.errors import ConfigError

__all__ = [
    "bind",
    "cuda_index",
    "device_of_process",
    "device_of_task",
    "devices_of_task",
    "limited_threads",
    "own_cores",
    "retained_memory",
    "returned_memory",
    "roam",
    "threads_of_process",
]

GPU_NAMES = ("GPU-", "MIG-")  # the prefixes of names of GPUs and of their parts
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
OWN_CORES, RETAINED_MEMORY = "SPARKDL_OWN_CORES", "SPARKDL_RETAINED_MEMORY"
"""Environment variables; the value ``0`` turns off :func:`own_cores` and :func:`retained_memory`."""
RETAINED_BYTES = 1 << 30
RETURNED_BYTES = 1 << 20
GLIBC_THRESHOLD = 128 << 10  # glibc's default for both thresholds
_cores_of_all_ranks: list[int] = []
"""The cores of all ranks of this host, while this rank is bound to its own; empty otherwise."""


def device_of_task(context: TaskContext) -> str:
    """The device of a Spark task: ``cuda:i`` for the first GPU that Spark assigned to it, else ``cpu``. Runs on a rank.

    ``CUDA_VISIBLE_DEVICES`` is only read, because CUDA may already be initialised in a reused Python worker and would
    not notice a change.
    """
    return next(iter(devices_of_task(context)), "cpu")


def devices_of_task(context: TaskContext) -> list[str]:
    """The devices of all GPUs that Spark assigned to the task."""
    gpus = context.resources().get("gpu")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return [f"cuda:{cuda_index(address, visible)}" for address in (gpus.addresses if gpus else ())]


def cuda_index(address: str, visible: str | None) -> int:
    """CUDA's number for the GPU that Spark calls ``address``, in a process that sees the devices ``visible``.

    Raises :class:`ConfigError` if the process cannot see this GPU.
    """
    if visible:
        devices = _visible_gpus(visible)
        if address in devices:
            return devices.index(address)
        places = [str(place) for place in range(len(devices))]
        # The position among the visible devices, unless these are numbers, which may be other ranks' addresses.
        if address not in places or set(places) & set(devices):
            raise ConfigError(
                f"Spark assigned GPU {address!r} to this rank, but its process sees only"
                f" CUDA_VISIBLE_DEVICES={visible}; make the executors' environment and the GPU discovery script agree"
            )
    if not address.isdigit():
        raise ConfigError(
            f"Spark assigned GPU {address!r} to this rank; set CUDA_VISIBLE_DEVICES on the executors, or let the GPU"
            " discovery script return numbers"
        )
    return int(address)


def device_of_process(local_rank: int) -> str:
    """The device of a rank that is a process on the driver: the GPU of its local rank if there is one, else ``cpu``."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = _nvidia_devices() if visible is None else _visible_gpus(visible)
    return f"cuda:{local_rank}" if local_rank < len(devices) else "cpu"


def threads_of_process(local_size: int) -> int:
    """The share of this machine's cores for one of ``local_size`` processes, at least one."""
    return max(1, len(os.sched_getaffinity(0)) // local_size)


@contextmanager
def limited_threads(threads: int) -> Iterator[None]:
    """Let PyTorch compute with so many threads, whether it is imported already or later. Runs on a rank."""
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch else None
    if torch:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        if torch:
            torch.set_num_threads(before)


@contextmanager
def own_cores(device: str, local_rank: int, local_size: int, threads: int) -> Iterator[None]:
    """Bind a rank that computes on the CPU to its own cores, if the host's ranks use all cores. Runs on a rank.

    Without this, the kernel moves a thread of one rank to the core of another rank that is waiting. When that rank
    continues, the two share a core, and all ranks wait for them. Nothing is bound if the host has more cores than its
    ranks have threads, because other processes may use them; nor with GPUs, each of which is closer to certain cores;
    nor if ``SPARKDL_OWN_CORES`` is 0.
    """
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    unwanted = device != "cpu" or os.environ.get(OWN_CORES) == "0"
    if unwanted or local_size < 2 or local_size * threads != len(cores):
        yield
        return
    bind(cores[local_rank * threads : (local_rank + 1) * threads])
    _cores_of_all_ranks[:] = cores
    try:
        yield
    finally:
        _cores_of_all_ranks.clear()
        bind(cores)


def roam() -> None:
    """Let the calling thread run on any rank's cores, if this rank is bound to its own. Runs on a rank.

    Otherwise a thread in the background would occupy the rank's only core, and the other ranks would wait.
    """
    if _cores_of_all_ranks:
        os.sched_setaffinity(0, _cores_of_all_ranks)


def bind(cores: Collection[int]) -> None:
    """Bind all threads of this process to these cores."""
    for thread in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # the thread has ended meanwhile
            os.sched_setaffinity(int(thread.name), cores)


@contextmanager
def retained_memory() -> Iterator[None]:
    """Within this context, memory that a training step frees is kept for the next step. Runs on a rank.

    By default, glibc returns large blocks to the kernel, which has to zero each page when it hands them out again: up
    to a third of a training step on a CPU. At the end, all free memory is returned. Does nothing if
    ``SPARKDL_RETAINED_MEMORY`` is 0.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt") or os.environ.get(RETAINED_MEMORY) == "0":
        yield
        return
    for option in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD):
        libc.mallopt(option, RETAINED_BYTES)
    try:
        yield
    finally:
        for option in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD):
            libc.mallopt(option, GLIBC_THRESHOLD)
        libc.malloc_trim(0)


@contextmanager
def returned_memory(smallest: int = RETURNED_BYTES) -> Iterator[None]:
    """Within this context, freed blocks of at least ``smallest`` bytes are returned to the kernel at once. On a rank.

    For work that fills the memory: the memory that :func:`retained_memory` keeps is fragmented, so that a large block
    would not fit into it.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt"):
        yield
        return
    libc.malloc_trim(0)
    for option in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD):
        libc.mallopt(option, smallest)
    try:
        yield
    finally:
        kept = GLIBC_THRESHOLD if os.environ.get(RETAINED_MEMORY) == "0" else RETAINED_BYTES
        for option in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD):
            libc.mallopt(option, kept)


def _visible_gpus(visible: str) -> list[str]:
    """The GPUs that CUDA_VISIBLE_DEVICES names. CUDA ignores the first invalid one (``-1``) and all after it."""
    names = [name.strip() for name in visible.split(",")]
    return list(takewhile(lambda name: name.isdigit() or name.startswith(GPU_NAMES), names))


def _nvidia_devices() -> list[Path]:
    """The device files of this machine's GPUs. Listing them is faster than importing PyTorch."""
    return [path for path in Path("/dev").glob("nvidia*") if path.name.removeprefix("nvidia").isdigit()]
