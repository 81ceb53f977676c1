"""Tensors that the ranks of one host have in common: one copy in memory, which all of them read and write."""

import mmap
import os
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import torch

from sparkdl.collectives.communicator import Communicator

__all__ = ["shared_copies", "split_by_memory"]

ALIGNMENT = 64  # bytes: no two tensors share a line of a CPU's cache


def split_by_memory(communicator: Communicator) -> tuple[Communicator, Communicator]:
    """The ranks that can share memory with this one, and the ranks that have the same number as this one in theirs.

    The second group of each first rank is that of all first ranks: one for each host. All ranks call it together.
    Ranks share memory when they are on one host and see each other's processes, which those of two containers do not.
    """
    process_spaces = communicator.all_gather_object(Path("/proc/self/ns/pid").stat().st_ino)
    places = list(zip(communicator.hosts(), process_spaces, strict=True))
    host = communicator.split(list(dict.fromkeys(places)).index(places[communicator.rank]))
    return host, communicator.split(host.rank)


@torch.no_grad()
def shared_copies(host: Communicator, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Tensors like these, with rank 0's values, in memory that all ranks of a host share. They call it together.

    The memory has no name: the kernel frees it with the last process that has mapped it, however processes end, and the
    size of ``/dev/shm``, which containers keep small, does not limit it.
    """
    offsets = [0, *accumulate(-(-tensor.nbytes // ALIGNMENT) * ALIGNMENT for tensor in tensors)]
    size = max(offsets[-1], 1)
    file = -1
    if host.rank == 0:
        file = os.memfd_create("sparkdl")
        os.ftruncate(file, size)
    path = host.broadcast_object(f"/proc/{os.getpid()}/fd/{file}")
    if host.rank != 0:
        file = os.open(path, os.O_RDWR)
    memory = torch.frombuffer(mmap.mmap(file, size), dtype=torch.uint8)
    copies = [
        memory[offset : offset + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        for offset, tensor in zip(offsets, tensors, strict=False)
    ]
    if host.rank == 0:
        for copy, tensor in zip(copies, tensors, strict=True):
            copy.copy_(tensor)
    host.barrier()
    os.close(file)
    return copies
