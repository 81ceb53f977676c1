"""The plain mean by sharded servers: every rank is the server of its part of the values.

Of k bytes a rank sends 2 k (n - 1) / n, in two rounds of n - 1 messages at once.
"""

from collections.abc import Sequence

import torch
from typing_extensions import override

from sparkdl.collectives.averaging.averager import Exchange
from sparkdl.collectives.averaging.point_to_point import PointToPoint
from sparkdl.collectives.communicator import Wait
from sparkdl.collectives.vectors import joined, put_back

__all__ = ["ShardedServers"]


class ShardedServers(PointToPoint):
    """Each rank sends to each server what it is the server of, and receives the mean from it."""

    @override
    def exchange(self, tensors: Sequence[torch.Tensor], *, key: str) -> Exchange:
        vector, tag = joined(tensors).mul_(self._share), self.tag(key)
        shards = vector.tensor_split(self._messenger.size)
        own = shards[self._messenger.rank]
        values = [torch.empty_like(own) for _ in shards]
        waits = self._start_swaps(shards, values, tag)
        yield
        for wait in waits:
            wait()
        values[self._messenger.rank] = own.clone()
        own.zero_()
        for each in values:
            own += each
        waits = self._start_swaps([own] * len(shards), shards, tag)
        yield
        for wait in waits:
            wait()
        put_back(vector, tensors)

    def _start_swaps(self, given: Sequence[torch.Tensor], taken: Sequence[torch.Tensor], tag: int) -> list[Wait]:
        """Begin to give to each other rank what is for it, and to take what it gives."""
        peers = [peer for peer in range(self._messenger.size) if peer != self._messenger.rank]
        return [self._messenger.start_swap(given[peer], taken[peer], peer=peer, tag=tag) for peer in peers]
