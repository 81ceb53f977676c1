"""Quantisation by blocks: each block of values has a step size, and each value a code of few bits, in steps."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence

import torch
from torch.nn.functional import pad
from typing_extensions import override

from sparkdl.collectives.averaging.gathered import Gathered
from sparkdl.collectives.averaging.packing import message_of, pack, parts_of, unpack
from sparkdl.collectives.communicator import Communicator

__all__ = ["BLOCK", "Blockwise", "blocks_of"]

BLOCK = 512  # values that share a step, as in QSGD: steps are then one percent of a message of 8 bits
PIECE = 1024  # blocks, 2 MB of float32


class Blockwise(Gathered):
    """Codes are integers from 0; the value 0 has the code ``zero``, which may be a fraction."""

    def __init__(self, communicator: Communicator, *, bits: int, zero: float) -> None:
        super().__init__(communicator)
        self._bits, self._zero = bits, zero

    @abstractmethod
    def steps(self, blocks: torch.Tensor, count: int) -> torch.Tensor:
        """The steps of blocks, shape ``(blocks, 1)``; the first ``count`` numbers are values, the rest is padding."""

    @abstractmethod
    def codes(self, blocks: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
        """The codes of blocks with these steps, of the same shape."""

    @override
    def encode(self, vector: torch.Tensor, *, key: str) -> torch.Tensor:
        blocks = blocks_of(vector)
        steps, codes = (blocks.new_empty(shape, dtype=dtype) for dtype, shape in self._kinds(vector))
        for piece in _pieces(len(blocks)):
            found = blocks[piece]
            steps[piece] = self.steps(found, min(found.numel(), len(vector) - piece.start * BLOCK))
            codes[piece] = pack(self.codes(found, steps[piece]).to(torch.uint8), bits=self._bits)
        return message_of(steps, codes)

    @override
    def total(self, messages: Sequence[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
        found = [parts_of(message, *self._kinds(like)) for message in messages]
        result = like.new_zeros(-(-len(like) // BLOCK), BLOCK)
        for piece in _pieces(len(result)):
            for steps, codes in found:
                multiples = unpack(codes[piece], bits=self._bits).to(like.dtype).sub_(self._zero)
                result[piece].addcmul_(multiples, steps[piece])
        return result.view(-1)[: len(like)]

    def _kinds(self, vector: torch.Tensor) -> list[tuple[torch.dtype, tuple[int, int]]]:
        """Types and shapes in a message for this vector: the steps of its blocks, and the packed codes."""
        count = -(-len(vector) // BLOCK)
        return [(vector.dtype, (count, 1)), (torch.uint8, (count, BLOCK * self._bits // 8))]


def _pieces(count: int) -> Iterator[slice]:
    """Slices of ``count`` blocks, small enough that all their intermediate results fit into a processor's cache."""
    return (slice(first, first + PIECE) for first in range(0, count, PIECE))


def blocks_of(vector: torch.Tensor) -> torch.Tensor:
    """A vector's values, shape ``(blocks, 512)``, the last block padded with zeros. Copies only if it needs padding."""
    missing = -len(vector) % BLOCK
    return (pad(vector, (0, missing)) if missing else vector).view(-1, BLOCK)
