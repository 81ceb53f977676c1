"""Tensors in memory that the ranks of one host share: one copy, which all of them read and write."""

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
    """The group of the ranks that share memory with this one, and the group of those with this rank's number in theirs.

    So the second group of a first rank has the first rank of each host. All ranks call it together. Ranks share memory
    when they are on one host and see each other's processes, which ranks in different containers do not.
    """
    process_spaces = communicator.all_gather_object(Path("/proc/self/ns/pid").stat().st_ino)
    places = list(zip(communicator.hosts(), process_spaces, strict=True))
    host = communicator.split(list(dict.fromkeys(places)).index(places[communicator.rank]))
    return host, communicator.split(host.rank)


@torch.no_grad()
def shared_copies(host: Communicator, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copies of rank 0's tensors in memory that all ranks of a host share. The ranks call it together.

    The memory has no name: the kernel frees it with the last process that maps it, however processes end, and the
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
