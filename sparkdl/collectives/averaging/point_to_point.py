"""The common part of averagers that send messages between pairs of ranks."""

from collections.abc import Sequence

import torch
from typing_extensions import override

from sparkdl.collectives.averaging.averager import Averager
from sparkdl.collectives.communicator import Messenger, Wait

__all__ = ["PointToPoint"]


class PointToPoint(Averager):
    """The plain mean, by messages between pairs of ranks."""

    def __init__(self, messenger: Messenger) -> None:
        self._messenger = messenger
        self._share = 1 / messenger.size
        """The factor of each rank's values, applied before the sum, which might overflow otherwise."""
        self._tags: dict[str, int] = {}

    @property
    @override
    def is_identity(self) -> bool:
        return self._messenger.size == 1

    def tag(self, key: str) -> int:
        """The tag of an exchange, which distinguishes its messages from those of other exchanges in progress.

        The order of messages is not enough, because one rank may be a round ahead of another. All ranks begin exchanges
        in the same order, and so number them alike.
        """
        return self._tags.setdefault(key, len(self._tags))

    def start_swaps(self, given: Sequence[torch.Tensor], taken: Sequence[torch.Tensor], *, tag: int) -> Wait:
        """Begin to send ``given[r]`` to each other rank r, and to receive ``taken[r]`` from it."""
        peers = [peer for peer in range(self._messenger.size) if peer != self._messenger.rank]
        waits = [self._messenger.start_swap(given[peer], taken[peer], peer=peer, tag=tag) for peer in peers]

        def wait() -> None:
            for each in waits:
                each()

        return wait
