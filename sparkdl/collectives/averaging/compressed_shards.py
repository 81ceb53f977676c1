"""Sharded servers that receive compressed values, and send back their mean, compressed again.

If the compressed values are k bytes, a rank sends 2 k (n - 1) / n. Both directions lose something, and both have error
feedback (Tang et al., 2019, DoubleSqueeze, arXiv 1905.05957).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn.functional import pad
from typing_extensions import override

from sparkdl.collectives.averaging.averager import Exchange, check_precision
from sparkdl.collectives.averaging.gathered import Gathered
from sparkdl.collectives.averaging.point_to_point import PointToPoint
from sparkdl.collectives.communicator import Messenger
from sparkdl.collectives.vectors import joined, put_back

__all__ = ["CompressedShards"]


class CompressedShards(PointToPoint):
    """Each rank is the server of its slice of the values. A single rank compresses, too."""

    def __init__(self, messenger: Messenger, compression: Gathered) -> None:
        super().__init__(messenger)
        self._compression = compression

    @property
    @override
    def is_identity(self) -> bool:
        return False

    @override
    def exchange(self, tensors: Sequence[torch.Tensor], *, key: str) -> Exchange:
        check_precision(tensors)
        rank, size, tag = self._messenger.rank, self._messenger.size, self.tag(key)
        vector = joined(tensors)
        shards = pad(vector, (0, -len(vector) % size)).view(size, -1)
        given = [self._compression.message(shard, key=f"{key}.{server}") for server, shard in enumerate(shards)]
        taken = [torch.empty_like(message) for message in given]
        wait = self.start_swaps(given, taken, tag=tag)
        yield
        wait()
        taken[rank] = given[rank]
        mean = self._compression.total(taken, shards[rank]).div_(size)
        given = [self._compression.message(mean, key=f"{key}.mean")] * size
        wait = self.start_swaps(given, taken, tag=tag)
        yield
        wait()
        taken[rank] = given[rank]
        means = [self._compression.total([message], mean) for message in taken]
        put_back(torch.cat(means)[: len(vector)], tensors)

    @override
    def own_state(self) -> dict[str, Any]:
        return self._compression.own_state()

    @override
    def load_own(self, own: Mapping[str, Any]) -> None:
        self._compression.load_own(own)
