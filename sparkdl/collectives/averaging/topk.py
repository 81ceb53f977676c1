"""Only the largest values travel, the others are kept until they have grown (Stich et al., 2018, arXiv 1809.07599).

Deep Gradient Compression (Lin et al., 2018, arXiv 1712.01887) adds two things. Momentum is applied by each rank before
values are chosen, and forgotten where a value was sent: after the mean it would repeat what arrives late. And training
begins with more values, since gradients change fast then.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from typing_extensions import override

from sparkdl.collectives.averaging.gathered import Gathered
from sparkdl.collectives.averaging.packing import message_of, parts_of
from sparkdl.collectives.communicator import Communicator

__all__ = ["DGC"]

FIRST_RATIO = 0.25  # of the values in the first epoch of the warm-up, as DGC has it
SAMPLE = 1 << 14  # values from which the size of the smallest that travels is guessed
MARGIN = 1.5  # of the sample, so that the guess is seldom too large


class DGC(Gathered):
    """The part ``ratio`` of a vector's values that are the largest, with their places."""

    memory: ClassVar[float] = 1.0

    def __init__(self, communicator: Communicator, *, ratio: float, momentum: float, warmup_epochs: int) -> None:
        super().__init__(communicator)
        self._ratio, self._momentum, self._warmup_epochs = ratio, momentum, warmup_epochs
        self._epochs = 0
        self._velocities: dict[str, torch.Tensor] = {}

    @override
    def added(self, vector: torch.Tensor, *, key: str) -> torch.Tensor:
        if not self._momentum:
            return vector
        velocity = self._velocities.setdefault(key, torch.zeros_like(vector))
        return torch.add(vector, velocity, alpha=self._momentum, out=velocity)

    @override
    def encode(self, vector: torch.Tensor, *, key: str) -> torch.Tensor:
        places = _largest(vector.abs(), self._count(len(vector)))
        if self._momentum:
            self._velocities[key][places] = 0
        return message_of(vector[places], places.to(_type_of_places(vector)))

    @override
    def total(self, messages: Sequence[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
        result = torch.zeros_like(like)
        count = (self._count(len(like)),)
        for message in messages:
            values, places = parts_of(message, (like.dtype, count), (_type_of_places(like), count))
            result.index_add_(0, places, values)
        return result

    @override
    def end_epoch(self) -> None:
        self._epochs += 1

    @override
    def state(self) -> dict[str, Any]:
        return {"epochs": self._epochs}

    @override
    def load(self, state: Mapping[str, Any]) -> None:
        self._epochs = state["epochs"]

    @override
    def own_state(self) -> dict[str, Any]:
        return super().own_state() | {"velocities": self._velocities}

    @override
    def load_own(self, own: Mapping[str, Any]) -> None:
        super().load_own(own)
        self._velocities = dict(own["velocities"])

    def _count(self, length: int) -> int:
        """How many of so many values travel in this epoch: fewer by the same factor each, until the warm-up is over."""
        ratio = self._ratio
        if self._epochs < self._warmup_epochs and ratio < FIRST_RATIO:
            ratio = FIRST_RATIO * (ratio / FIRST_RATIO) ** (self._epochs / self._warmup_epochs)
        return min(length, max(1, round(ratio * length)))


def _type_of_places(vector: torch.Tensor) -> torch.dtype:
    return torch.int32 if len(vector) <= torch.iinfo(torch.int32).max else torch.int64


def _largest(sizes: torch.Tensor, count: int) -> torch.Tensor:
    """The places of the ``count`` largest values.

    Sorting all of a long vector takes ten times as long as choosing among those that are likely: a sample says which.
    """
    sample = sizes[:: max(1, len(sizes) // SAMPLE)]
    likely = int(MARGIN * count * len(sample) / max(1, len(sizes))) + 1
    if likely < len(sample) // 2:
        unlikely = sizes < sample.topk(likely).values[-1]  # false for what is no number, which counts as the largest
        candidates = unlikely.logical_not_().nonzero().squeeze(1)
        if len(candidates) >= count:
            return candidates[sizes[candidates].topk(count).indices]
    return sizes.topk(count).indices
