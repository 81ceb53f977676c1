"""Only the largest values are sent; the others accumulate until they are large (Stich et al., 2018, arXiv 1809.07599).

Deep Gradient Compression (Lin et al., 2018, arXiv 1712.01887) adds two things. Each rank applies momentum before values
are chosen, and resets it where a value was sent; applied after the mean, momentum would repeat values that arrive late.
And training starts with more values, because gradients change fast then.
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
SAMPLE = 1 << 14  # values from which the threshold is estimated
MARGIN = 1.5  # more of the sample's values, so that the estimate is seldom too high


class DGC(Gathered):
    """Sends the largest values of a vector, a fraction ``ratio`` of them, with their indices."""

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
        """How many of ``length`` values are sent in this epoch; it shrinks by a factor per epoch of the warm-up."""
        ratio = self._ratio
        if self._epochs < self._warmup_epochs and ratio < FIRST_RATIO:
            ratio = FIRST_RATIO * (ratio / FIRST_RATIO) ** (self._epochs / self._warmup_epochs)
        return min(length, max(1, round(ratio * length)))


def _type_of_places(vector: torch.Tensor) -> torch.dtype:
    return torch.int32 if len(vector) <= torch.iinfo(torch.int32).max else torch.int64


def _largest(sizes: torch.Tensor, count: int) -> torch.Tensor:
    """The indices of the ``count`` largest values.

    For a long vector, values below a threshold, estimated from a sample, are excluded first: ten times as fast.
    """
    sample = sizes[:: max(1, len(sizes) // SAMPLE)]
    likely = int(MARGIN * count * len(sample) / max(1, len(sizes))) + 1
    if likely < len(sample) // 2:
        unlikely = sizes < sample.topk(likely).values[-1]  # false for NaN, which counts as the largest
        candidates = unlikely.logical_not_().nonzero().squeeze(1)
        if len(candidates) >= count:
            return candidates[sizes[candidates].topk(count).indices]
    return sizes.topk(count).indices
