"""The plain mean by the backend's own all-reduce: a ring, in which each rank sends to the next one.

For k bytes, each of n ranks sends 2 k (n - 1) / n bytes to one neighbour (Patarasuk and Yuan, 2009).
"""

from collections.abc import Sequence

import torch
from typing_extensions import override

from sparkdl.collectives.averaging.averager import Averager, Exchange
from sparkdl.collectives.communicator import Communicator

__all__ = ["Ring"]


class Ring(Averager):
    """Sends values without compression, all tensors of an exchange in one message."""

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator

    @property
    @override
    def gathers_rows(self) -> Communicator | None:
        return self._communicator

    @property
    @override
    def is_identity(self) -> bool:
        return self._communicator.size == 1

    @override
    def exchange(self, tensors: Sequence[torch.Tensor], *, key: str) -> Exchange:
        wait = self._communicator.start_mean(tensors, name=key)
        yield
        wait()
