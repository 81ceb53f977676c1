"""The common part of averagers that send messages between pairs of ranks."""

from collections.abc import Sequence

import torch
from typing_extensions import override

from sparkdl.collectives.averaging.averager import Averager
from sparkdl.collectives.communicator import Messenger, Wait

__all__ = ["PointToPoint"]


class PointToPoint(Averager):
    """The plain mean, by messages from one rank to another one."""

    def __init__(self, messenger: Messenger) -> None:
        self._messenger = messenger
        self._share = 1 / messenger.size
        """What the values of each rank are multiplied by: before the sum, which may overflow otherwise."""
        self._tags: dict[str, int] = {}

    @property
    @override
    def is_identity(self) -> bool:
        return self._messenger.size == 1

    def tag(self, key: str) -> int:
        """What tells the messages of an exchange from those of others that are under way.

        One rank may be a round ahead of another, so that the order of messages does not tell. All ranks begin exchanges
        in the same order, and number them alike.
        """
        return self._tags.setdefault(key, len(self._tags))

    def start_swaps(self, given: Sequence[torch.Tensor], taken: Sequence[torch.Tensor], *, tag: int) -> Wait:
        """Begin to give to each other rank what is for it, and to take what it gives; both are by rank."""
        peers = [peer for peer in range(self._messenger.size) if peer != self._messenger.rank]
        waits = [self._messenger.start_swap(given[peer], taken[peer], peer=peer, tag=tag) for peer in peers]

        def wait() -> None:
            for each in waits:
                each()

        return wait
