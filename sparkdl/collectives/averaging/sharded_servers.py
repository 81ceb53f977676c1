"""The plain mean by sharded servers: every rank is the server of its slice of the values.

For k bytes a rank sends 2 k (n - 1) / n, in two rounds of n - 1 simultaneous messages.
"""

from collections.abc import Sequence

import torch
from typing_extensions import override

from sparkdl.collectives.averaging.averager import Exchange
from sparkdl.collectives.averaging.point_to_point import PointToPoint
from sparkdl.collectives.vectors import joined, put_back

__all__ = ["ShardedServers"]


class ShardedServers(PointToPoint):
    """Each rank sends every server that server's slice, and receives the slice's mean from it."""

    @override
    def exchange(self, tensors: Sequence[torch.Tensor], *, key: str) -> Exchange:
        vector, tag = joined(tensors).mul_(self._share), self.tag(key)
        shards = vector.tensor_split(self._messenger.size)
        own = shards[self._messenger.rank]
        values = [torch.empty_like(own) for _ in shards]
        wait = self.start_swaps(shards, values, tag=tag)
        yield
        wait()
        values[self._messenger.rank] = own.clone()
        own.zero_()
        for each in values:
            own += each
        wait = self.start_swaps([own] * len(shards), shards, tag=tag)
        yield
        wait()
        put_back(vector, tensors)
