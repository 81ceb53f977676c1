"""Few bits for each value: whole multiples of a step that a block of values has in common.

QSGD (Alistarh et al., 2017, arXiv 1610.02132) rounds up with the probability of the remainder, so that the expected
message is the vector: it needs no memory. The largest value of a block sets its step, as in the paper's experiments.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch.nn.functional import pad
from typing_extensions import override

from sparkdl.collectives.averaging.gathered import Gathered
from sparkdl.collectives.averaging.packing import message_of, pack, parts_of, unpack
from sparkdl.collectives.communicator import Communicator

__all__ = ["QSGD", "Int8"]

BLOCK = 512  # values that share a scale: QSGD's own, so that scales are one percent of a message of 8 bits


class _Quantised(Gathered):
    def __init__(self, communicator: Communicator, *, bits: int) -> None:
        super().__init__(communicator)
        self._bits = bits
        self._levels = 2 ** (bits - 1) - 1
        """How many multiples of the step are above zero, and how many below."""

    @abstractmethod
    def round(self, values: torch.Tensor) -> torch.Tensor:
        """The whole numbers by which values travel; may overwrite the argument."""

    @override
    def encode(self, vector: torch.Tensor, *, key: str) -> torch.Tensor:
        blocks = pad(vector, (0, -len(vector) % BLOCK)).view(-1, BLOCK)
        steps = blocks.abs().amax(dim=1, keepdim=True).div_(self._levels)
        multiples = self.round(blocks / steps.clamp(min=torch.finfo(steps.dtype).tiny))
        codes = multiples.clamp_(-self._levels, self._levels).add_(self._levels).to(torch.uint8)
        return message_of(steps, pack(codes.view(-1), bits=self._bits))

    @override
    def total(self, messages: Sequence[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
        count = -(-len(like) // BLOCK)
        result = like.new_zeros(count, BLOCK)
        for message in messages:
            packed = count * BLOCK * self._bits // 8
            steps, codes = parts_of(message, (like.dtype, (count, 1)), (torch.uint8, (packed,)))
            multiples = unpack(codes, count * BLOCK, bits=self._bits).to(like.dtype).view(count, BLOCK)
            result.addcmul_(multiples.sub_(self._levels), steps)
        return result.view(-1)[: len(like)]


class Int8(_Quantised):
    """The nearest of 255 multiples; what is lost by that is carried along."""

    memory: ClassVar[float] = 1.0

    def __init__(self, communicator: Communicator) -> None:
        super().__init__(communicator, bits=8)

    @override
    def round(self, values: torch.Tensor) -> torch.Tensor:
        return values.round_()


class QSGD(_Quantised):
    """One of the two multiples around, so that the mean over many tries is the value itself."""

    @override
    def round(self, values: torch.Tensor) -> torch.Tensor:
        return values.add_(torch.rand_like(values)).floor_()
