"""Values as integer multiples of a step size, which each block of values has for itself.

QSGD (Alistarh et al., 2017, arXiv 1610.02132) rounds up with the probability of the remainder, so that the expected
message is the vector, and no error feedback is needed. The largest value of a block sets its step, as in the paper's
experiments.
"""

from abc import abstractmethod
from typing import ClassVar

import torch
from typing_extensions import override

from sparkdl.collectives.averaging.blockwise import Blockwise
from sparkdl.collectives.communicator import Communicator

__all__ = ["QSGD", "Int8"]


class _Quantised(Blockwise):
    def __init__(self, communicator: Communicator, *, bits: int) -> None:
        self._levels = 2 ** (bits - 1) - 1
        """The largest multiple of the step, above zero and below."""
        super().__init__(communicator, bits=bits, zero=self._levels)

    @abstractmethod
    def round(self, values: torch.Tensor) -> torch.Tensor:
        """Round values, in steps, to integers; may overwrite the argument."""

    @override
    def steps(self, blocks: torch.Tensor, count: int) -> torch.Tensor:
        return blocks.abs().amax(dim=1, keepdim=True).div_(self._levels)

    @override
    def codes(self, blocks: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
        multiples = self.round(blocks / steps.clamp(min=torch.finfo(steps.dtype).tiny))
        return multiples.clamp_(-self._levels, self._levels).add_(self._levels)


class Int8(_Quantised):
    """Rounds to the nearest of 255 multiples, with error feedback."""

    memory: ClassVar[float] = 1.0

    def __init__(self, communicator: Communicator) -> None:
        super().__init__(communicator, bits=8)

    @override
    def round(self, values: torch.Tensor) -> torch.Tensor:
        return values.round_()


class QSGD(_Quantised):
    """Rounds randomly to one of the two nearest multiples, so that the expected result is the value."""

    @override
    def round(self, values: torch.Tensor) -> torch.Tensor:
        return values.add_(torch.rand_like(values)).floor_()
