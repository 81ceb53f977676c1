"""The plain mean by recursive halving and doubling (Rabenseifner, 2004; Thakur et al., 2005), the butterfly.

For k bytes a rank sends 2 k (n - 1) / n bytes, as in a ring, but in 2 log2(n) messages instead of 2 (n - 1). The first
partners are neighbours: ranks of one host have consecutive numbers, so that the largest messages stay within hosts.
"""

from collections.abc import Sequence

import torch
from typing_extensions import override

from sparkdl.collectives.averaging.averager import Exchange
from sparkdl.collectives.averaging.point_to_point import PointToPoint
from sparkdl.collectives.communicator import Messenger
from sparkdl.collectives.vectors import joined, put_back

__all__ = ["Butterfly"]


class Butterfly(PointToPoint):
    """In each round a rank and its partner each add up one half of their values; then they exchange the halves back.

    If the number of ranks is no power of two, each surplus rank sends its values to another rank, and receives the
    result from it.
    """

    def __init__(self, messenger: Messenger) -> None:
        super().__init__(messenger)
        self._core = 1 << (messenger.size.bit_length() - 1)

    @override
    def exchange(self, tensors: Sequence[torch.Tensor], *, key: str) -> Exchange:
        vector, tag = joined(tensors).mul_(self._share), self.tag(key)
        rank, guests = self._messenger.rank, self._messenger.size - self._core
        if rank >= self._core:
            result = torch.empty_like(vector)
            wait = self._messenger.start_swap(vector, result, peer=rank - self._core, tag=tag)
            yield
            wait()
            vector = result
        else:
            if rank < guests:
                values = torch.empty_like(vector)
                wait = self._messenger.start_receive(values, source=rank + self._core, tag=tag)
                yield
                wait()
                vector += values
            yield from self._halve_and_double(vector, tag)
            if rank < guests:
                wait = self._messenger.start_send(vector, target=rank + self._core, tag=tag)
                yield
                wait()
        put_back(vector, tensors)

    def _halve_and_double(self, vector: torch.Tensor, tag: int) -> Exchange:
        own, halves, distance = vector, [], 1
        while distance < self._core:
            lower, upper = own.tensor_split(2)
            own, given = (upper, lower) if self._messenger.rank & distance else (lower, upper)
            values = torch.empty_like(own)
            wait = self._messenger.start_swap(given, values, peer=self._messenger.rank ^ distance, tag=tag)
            yield
            wait()
            own += values
            halves.append((distance, own, given))
            distance *= 2
        for distance, own, given in reversed(halves):
            wait = self._messenger.start_swap(own, given, peer=self._messenger.rank ^ distance, tag=tag)
            yield
            wait()
