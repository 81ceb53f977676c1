"""Which slice of every parameter each server holds, and how slices lie in a message. Runs anywhere.

Each tensor is cut into one slice per server. The sizes differ by at most one element, so that servers do equal work for
all shapes. A server's slices lie in one piece of memory, in blocks of one type, and messages are copies of that memory.
Trained tensors may be divided into fragments, which are sent separately.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

__all__ = ["Block", "Memory", "Partition"]


class Block(NamedTuple):
    """Slices that are adjacent in a server's memory, because they have one type and are merged by one rule."""

    dtype: torch.dtype
    trained: bool
    """Whether the slices are of trained parameters, and not of buffers."""
    fragment: int
    """The fragment of the slices; buffers belong to the first one."""
    names: tuple[str, ...]
    """The tensors that the slices are cut from."""


class Memory(NamedTuple):
    """A server's slices of all tensors or of one fragment: their values, or a push for them."""

    content: torch.Tensor
    """The whole memory, uint8 of shape (bytes,)."""
    blocks: list[torch.Tensor]
    """Views of ``content``, one vector per block."""
    layout: list[Block]
    """Describes each of ``blocks``."""


class Partition:
    """How ``trained`` tensors and ``buffers`` are spread over ``servers``. Workers and servers compute the same one.

    There are at most as many ``fragments`` as trained tensors, which are assigned to fragments in turn.
    """

    def __init__(
        self,
        trained: Mapping[str, torch.Tensor],
        buffers: Mapping[str, torch.Tensor],
        *,
        servers: int,
        fragments: int = 1,
    ) -> None:
        self.servers = servers
        self.fragments = max(1, min(fragments, len(trained)))
        tensors = {**trained, **buffers}
        self.shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        fragment_of = {name: number % self.fragments for number, name in enumerate(trained)}
        kinds = {name: (tensor.dtype, name in trained, fragment_of.get(name, 0)) for name, tensor in tensors.items()}
        # Wide types first, so that every vector is aligned.
        order = sorted(set(kinds.values()), key=lambda kind: (-kind[0].itemsize, str(kind[0]), not kind[1], kind[2]))
        self.blocks = [Block(*kind, tuple(name for name, each in kinds.items() if each == kind)) for kind in order]
        self._sizes = {name: tensor.numel() for name, tensor in tensors.items()}

    def new_memory(self, server: int, fragment: int | None = None) -> Memory:
        """Uninitialised memory for a server's slices of one fragment or of all tensors."""
        layout = [block for block in self.blocks if fragment in (None, block.fragment)]
        lengths = [sum(self._length(name, server) for name in block.names) for block in layout]
        sizes = [length * block.dtype.itemsize for length, block in zip(lengths, layout, strict=True)]
        content = torch.empty(sum(sizes), dtype=torch.uint8)
        parts = content.split(sizes)
        return Memory(content, [part.view(block.dtype) for part, block in zip(parts, layout, strict=True)], layout)

    def cut(self, tensors: Mapping[str, torch.Tensor], server: int, memory: Memory) -> None:
        """Fill the memory with a server's slices of the tensors, and with zeros for missing tensors."""
        for name, part in self.slices(server, memory).items():
            if name in tensors:
                part.copy_(tensors[name].detach().reshape(-1)[self._range(name, server)])
            else:
                part.zero_()

    def join(self, memories: Sequence[Memory], tensors: Mapping[str, torch.Tensor]) -> None:
        """Overwrite the tensors, in place, with the slices of all servers."""
        for server, memory in enumerate(memories):
            for name, part in self.slices(server, memory).items():
                tensors[name].detach().view(-1)[self._range(name, server)] = part

    def slices(self, server: int, memory: Memory) -> dict[str, torch.Tensor]:
        """Views of a server's memory, by tensor, each a vector."""
        found: dict[str, torch.Tensor] = {}
        for block, vector in zip(memory.layout, memory.blocks, strict=True):
            found |= zip(block.names, vector.split([self._length(name, server) for name in block.names]), strict=True)
        return found

    def _range(self, name: str, server: int) -> slice:
        size = self._sizes[name]
        return slice(size * server // self.servers, size * (server + 1) // self.servers)

    def _length(self, name: str, server: int) -> int:
        found = self._range(name, server)
        return int(found.stop - found.start)
