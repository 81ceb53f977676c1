"""The plain mean by one server: rank 0 receives the values of all ranks, and sends them their mean.

For k bytes, each of n - 1 ranks sends k, but the server receives and sends k (n - 1).
"""

from collections.abc import Sequence

import torch
from typing_extensions import override

from sparkdl.collectives.averaging.averager import Exchange
from sparkdl.collectives.averaging.point_to_point import PointToPoint
from sparkdl.collectives.vectors import joined, put_back

__all__ = ["Server"]


class Server(PointToPoint):
    """All ranks send at the same time, and the server answers all when it has their sum."""

    @override
    def exchange(self, tensors: Sequence[torch.Tensor], *, key: str) -> Exchange:
        messenger, tag = self._messenger, self.tag(key)
        vector = joined(tensors).mul_(self._share)
        if messenger.rank == 0:
            values = [torch.empty_like(vector) for _ in range(1, messenger.size)]
            numbered = enumerate(values, start=1)
            receiving = [messenger.start_receive(each, source=rank, tag=tag) for rank, each in numbered]
            yield
            for wait, each in zip(receiving, values, strict=True):
                wait()
                vector += each
            put_back(vector, tensors)
            yield from self.agree(tensors, key=key)
            vector = joined(tensors)
            sending = [messenger.start_send(vector, target=rank, tag=tag) for rank in range(1, messenger.size)]
            yield
            for wait in sending:
                wait()
        else:
            answer = torch.empty_like(vector)
            wait = messenger.start_swap(vector, answer, peer=0, tag=tag)
            yield
            wait()
            put_back(answer, tensors)

    def agree(self, tensors: Sequence[torch.Tensor], *, key: str) -> Exchange:
        """Called with the sum before the server answers; does nothing if it is the only server."""
        yield from ()
