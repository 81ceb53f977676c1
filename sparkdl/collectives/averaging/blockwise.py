"""Few bits for each value, and for each block of values a step of their own: a value is so many steps."""

from collections.abc import Sequence

import torch
from torch.nn.functional import pad
from typing_extensions import override

from sparkdl.collectives.averaging.gathered import Gathered
from sparkdl.collectives.averaging.packing import message_of, pack, parts_of, unpack
from sparkdl.collectives.communicator import Communicator

__all__ = ["BLOCK", "Blockwise", "blocks_of"]

BLOCK = 512  # values that share a step: QSGD's own, so that steps are one percent of a message of 8 bits


class Blockwise(Gathered):
    """Codes are whole numbers from zero; the code ``zero``, which need not be whole, stands for the value zero."""

    def __init__(self, communicator: Communicator, *, bits: int, zero: float) -> None:
        super().__init__(communicator)
        self._bits, self._zero = bits, zero

    def message_of(self, steps: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        """From the steps of blocks, shape ``(blocks, 1)``, and the codes, of type uint8 and shape ``(blocks, 512)``."""
        return message_of(steps, pack(codes.view(-1), bits=self._bits))

    @override
    def total(self, messages: Sequence[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
        count = -(-len(like) // BLOCK)
        result, all_steps = like.new_zeros(count, BLOCK), like.new_zeros(count, 1)
        for message in messages:
            packed = count * BLOCK * self._bits // 8
            steps, codes = parts_of(message, (like.dtype, (count, 1)), (torch.uint8, (packed,)))
            result.addcmul_(unpack(codes, count * BLOCK, bits=self._bits).to(like.dtype).view(count, BLOCK), steps)
            all_steps += steps
        return result.sub_(all_steps, alpha=self._zero).view(-1)[: len(like)]


def blocks_of(vector: torch.Tensor) -> torch.Tensor:
    """A vector's values, shape ``(blocks, 512)``; what is left of the last block is zero."""
    return pad(vector, (0, -len(vector) % BLOCK)).view(-1, BLOCK)
