"""What averagers have in common whose ranks speak to single others."""

from typing_extensions import override

from sparkdl.collectives.averaging.averager import Averager
from sparkdl.collectives.communicator import Messenger

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
