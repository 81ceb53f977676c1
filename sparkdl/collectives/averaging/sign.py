"""One bit for each value, its sign, and a majority decides (Bernstein et al., 2019, arXiv 1810.05291).

Signs alone do not converge everywhere. With a size that values have in common, and with what was lost added to the next
vector, they do (Karimireddy et al., 2019, arXiv 1901.09847). Gradients of different layers differ in size, so that each
block of values has one of its own (Zheng et al., 2019, arXiv 1905.10936). The majority loses something, too: all ranks
know what, and carry it along (Tang et al., 2019, DoubleSqueeze, arXiv 1905.05957).
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch.nn.functional import pad as pad_zeros
from typing_extensions import override

from sparkdl.collectives.averaging.gathered import Gathered
from sparkdl.collectives.averaging.packing import message_of, pack, parts_of, unpack
from sparkdl.collectives.communicator import Communicator

__all__ = ["Sign"]

BLOCK = 512  # values that share a size


class Sign(Gathered):
    """A rank's vote counts as much as its values are large on average."""

    memory: ClassVar[float] = 1.0

    def __init__(self, communicator: Communicator) -> None:
        super().__init__(communicator)
        self._outvoted: dict[str, torch.Tensor] = {}

    @override
    def encode(self, vector: torch.Tensor, *, key: str) -> torch.Tensor:
        signs = (vector >= 0).to(torch.uint8)
        return message_of(_sizes(vector), pack(signs, bits=1))

    @override
    def total(self, messages: Sequence[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
        result, count = torch.zeros_like(like), -(-len(like) // BLOCK)
        for message in messages:
            sizes, packed = parts_of(message, (like.dtype, (count,)), (torch.uint8, (-(-len(like) // 8),)))
            signs = unpack(packed, len(like), bits=1).to(like.dtype).mul_(2).sub_(1)
            result.addcmul_(signs, _spread(sizes, like))
        return result

    @override
    def result(self, mean: torch.Tensor, *, key: str) -> torch.Tensor:
        outvoted = self._outvoted.setdefault(key, torch.zeros_like(mean))
        outvoted.add_(mean)
        decided = outvoted.sign() * _spread(_sizes(outvoted), outvoted)
        outvoted.sub_(decided)
        return decided

    @override
    def state(self) -> dict[str, Any]:
        return {"outvoted": self._outvoted}

    @override
    def load(self, state: Mapping[str, Any]) -> None:
        self._outvoted = dict(state["outvoted"])


def _sizes(vector: torch.Tensor) -> torch.Tensor:
    """How large the values of each block are on average."""
    blocks = pad_zeros(vector.abs(), (0, -len(vector) % BLOCK)).view(-1, BLOCK)
    means = blocks.mean(dim=1)
    means[-1:] *= BLOCK / (1 + (len(vector) - 1) % BLOCK)  # the last one may have fewer values
    return means


def _spread(sizes: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """For each value the size of its block."""
    return sizes.repeat_interleave(BLOCK)[: len(like)]
