"""Which GPU, which cores and how many threads a rank owns."""

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

GPU_NAMES = ("GPU-", "MIG-")  # how the names of GPUs, and of parts of them, begin
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
OWN_CORES, RETAINED_MEMORY = "SPARKDL_OWN_CORES", "SPARKDL_RETAINED_MEMORY"
"""Environment variables; ``0`` turns off what has their name."""
RETAINED_BYTES = 1 << 30
RETURNED_BYTES = 1 << 20
GLIBC_THRESHOLD = 128 << 10  # what both are by default
_cores_of_all_ranks: list[int] = []
"""Of this host, while this rank keeps to its own."""


def device_of_task(context: TaskContext) -> str:
    """The device of a Spark task: ``cuda:i`` for the first GPU that Spark assigned to it, else ``cpu``. Runs on a rank.

    ``CUDA_VISIBLE_DEVICES`` is read and never changed: in a reused Python worker CUDA may be running already and would
    not notice.
    """
    return next(iter(devices_of_task(context)), "cpu")


def devices_of_task(context: TaskContext) -> list[str]:
    """The same of all GPUs that Spark assigned to the task."""
    gpus = context.resources().get("gpu")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return [f"cuda:{cuda_index(address, visible)}" for address in (gpus.addresses if gpus else ())]


def cuda_index(address: str, visible: str | None) -> int:
    """CUDA's number for the GPU that Spark calls ``address``, in a process that sees the devices ``visible``.

    Raises :class:`ConfigError` when the process cannot see the GPU it was given.
    """
    if visible:
        devices = _visible_gpus(visible)
        if address in devices:
            return devices.index(address)
        places = [str(place) for place in range(len(devices))]
        # By its place, unless another rank's address may be the number that stands there.
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
    """Keep a rank that computes on the CPU to its own cores where a host's ranks have all of them. Runs on a rank.

    Left to the kernel, a thread of one rank moves to the core of another that waits for a moment. When that one goes
    on, the two share a core, and all ranks wait for them. Where a host has more cores than its ranks have threads,
    nothing is bound: somebody else may be using those. Nor beside GPUs, of which each is nearer to other cores, nor
    where ``SPARKDL_OWN_CORES`` is 0.
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
    """Let the calling thread take a core that another rank leaves idle, where this rank keeps to its own. On a rank.

    What computes in the background would otherwise take a rank's only core, and the others wait for it.
    """
    if _cores_of_all_ranks:
        os.sched_setaffinity(0, _cores_of_all_ranks)


def bind(cores: Collection[int]) -> None:
    """Let all threads of this process run on these cores only."""
    for thread in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # it has ended since
            os.sched_setaffinity(int(thread.name), cores)


@contextmanager
def retained_memory() -> Iterator[None]:
    """Keep the memory that a step frees for the next step. Runs on a rank.

    glibc returns large blocks to the system, which then hands them out again zeroed, page by page: up to a third of a
    training step on a CPU. Afterwards everything free is returned. Does nothing where ``SPARKDL_RETAINED_MEMORY`` is 0.
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
    """Return blocks of so many bytes that are freed in this block at once, other than a rank does. Runs on a rank.

    For work that fills the memory: what glibc keeps is in pieces that the next large block does not fit into.
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
    """The GPUs that CUDA_VISIBLE_DEVICES names: CUDA sees none from the first on that cannot be one (``-1``)."""
    names = [name.strip() for name in visible.split(",")]
    return list(takewhile(lambda name: name.isdigit() or name.startswith(GPU_NAMES), names))


def _nvidia_devices() -> list[Path]:
    """The device files of this machine's GPUs; looking at them spares importing PyTorch."""
    return [path for path in Path("/dev").glob("nvidia*") if path.name.removeprefix("nvidia").isdigit()]
