"""One bit for each value, its sign, and a majority decides (Bernstein et al., 2019, arXiv 1810.05291).

Signs alone do not converge everywhere. With a common size for all values of a vector, and with what was lost added to
the next one, they do (Karimireddy et al., 2019, arXiv 1901.09847). The majority loses something, too: all ranks know
what, and carry it along (Tang et al., 2019, DoubleSqueeze, arXiv 1905.05957).
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from typing_extensions import override

from sparkdl.collectives.averaging.gathered import Gathered
from sparkdl.collectives.averaging.packing import message_of, pack, parts_of, unpack
from sparkdl.collectives.communicator import Communicator

__all__ = ["Sign"]


class Sign(Gathered):
    """A rank's vote counts as much as its values are large on average."""

    memory: ClassVar[float] = 1.0

    def __init__(self, communicator: Communicator) -> None:
        super().__init__(communicator)
        self._outvoted: dict[str, torch.Tensor] = {}

    @override
    def encode(self, vector: torch.Tensor, *, key: str) -> torch.Tensor:
        signs = (vector >= 0).to(torch.uint8)
        return message_of(vector.abs().mean(), pack(signs, bits=1))

    @override
    def total(self, messages: Sequence[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
        result = torch.zeros_like(like)
        for message in messages:
            size, packed = parts_of(message, (like.dtype, ()), (torch.uint8, (-(-len(like) // 8),)))
            signs = unpack(packed, len(like), bits=1).to(like.dtype).mul_(2).sub_(1)
            result.addcmul_(signs, size)
        return result

    @override
    def result(self, mean: torch.Tensor, *, key: str) -> torch.Tensor:
        outvoted = self._outvoted.setdefault(key, torch.zeros_like(mean))
        outvoted.add_(mean)
        decided = outvoted.sign() * outvoted.abs().mean()
        outvoted.sub_(decided)
        return decided

    @override
    def state(self) -> dict[str, Any]:
        return {"outvoted": self._outvoted}

    @override
    def load(self, state: Mapping[str, Any]) -> None:
        self._outvoted = dict(state["outvoted"])
