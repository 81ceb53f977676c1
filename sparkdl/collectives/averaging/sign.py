"""One bit for each value, its sign, with a majority vote of ranks (Bernstein et al., 2019, arXiv 1810.05291).

Signs alone do not always converge. With a common magnitude and error feedback, they do (Karimireddy et al., 2019, arXiv
1901.09847). Since gradients of different layers differ in magnitude, each block of values has its own (Zheng et al.,
2019, arXiv 1905.10936). The vote loses something, too: all ranks know its error, and add it to the next result (Tang et
al., 2019, DoubleSqueeze, arXiv 1905.05957).
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from typing_extensions import override

from sparkdl.collectives.averaging.blockwise import BLOCK, Blockwise, blocks_of
from sparkdl.collectives.communicator import Communicator

__all__ = ["Sign"]


class Sign(Blockwise):
    """A rank's vote is weighted by its values' mean magnitude: the code is 0 or 1, the step twice that magnitude."""

    memory: ClassVar[float] = 1.0

    def __init__(self, communicator: Communicator) -> None:
        super().__init__(communicator, bits=1, zero=0.5)
        self._outvoted: dict[str, torch.Tensor] = {}

    @override
    def steps(self, blocks: torch.Tensor, count: int) -> torch.Tensor:
        return 2 * _sizes(blocks, count)

    @override
    def codes(self, blocks: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
        return blocks >= 0

    @override
    def result(self, mean: torch.Tensor, *, key: str) -> torch.Tensor:
        outvoted = self._outvoted.setdefault(key, torch.zeros_like(mean))
        outvoted.add_(mean)
        blocks = blocks_of(outvoted)
        decided = blocks.sign().mul_(_sizes(blocks, len(mean))).view(-1)[: len(mean)]
        outvoted.sub_(decided)
        return decided

    @override
    def state(self) -> dict[str, Any]:
        return {"outvoted": self._outvoted}

    @override
    def load(self, state: Mapping[str, Any]) -> None:
        self._outvoted = dict(state["outvoted"])


def _sizes(blocks: torch.Tensor, count: int) -> torch.Tensor:
    """The mean magnitude of each block's values, shape ``(blocks, 1)``; the first ``count`` numbers are values."""
    sizes: torch.Tensor = torch.linalg.vector_norm(blocks, ord=1, dim=1, keepdim=True) / BLOCK
    sizes[-1:] *= BLOCK / (1 + (count - 1) % BLOCK)  # the last one may have fewer values
    return sizes
