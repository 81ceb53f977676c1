"""The interface of averagers, which define what ranks send to average their tensors, and where it is added up."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from sparkdl.collectives.communicator import Communicator

__all__ = ["Averager", "Exchange", "advance", "check_precision", "finish"]

Exchange = Iterator[None]
"""An exchange in rounds: each step of the iterator receives the messages of the last round and sends the next ones."""


class Averager(ABC):
    """Averages tensors over ranks. Runs on ranks.

    Compressions (what is sent) and topologies (where it is added up) are chosen independently: an averager with a
    compression contains one with a topology, or the other way round.
    """

    @abstractmethod
    def exchange(self, tensors: Sequence[torch.Tensor], *, key: str) -> Exchange:
        """Overwrite each tensor with its mean over ranks, or with an approximation, the same on all ranks.

        The tensors are real floating-point numbers of one type, with the same shapes and strides on all ranks, and must
        not be used until the exchange is over. ``key`` identifies the tensors: an averager may keep state for them from
        one exchange to the next. All ranks begin exchanges in the same order, and step through them by :func:`advance`
        and :func:`finish`.
        """

    @property
    def gathers_rows(self) -> Communicator | None:
        """The ranks among which the rows of sparse gradients are gathered; None: sparse gradients are made dense."""
        return None

    @property
    def is_identity(self) -> bool:
        """Whether an exchange changes nothing and can be skipped, as the plain mean of a single rank."""
        return False

    def end_epoch(self) -> None:
        """Called at the end of an epoch."""

    def state(self) -> dict[str, Any]:
        """The state for a checkpoint that is the same on all ranks: tensors and plain values."""
        return {}

    def own_state(self) -> dict[str, Any]:
        """The rank's own state for a checkpoint, for example values that it has not sent yet."""
        return {}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the result of :meth:`state`."""

    def load_own(self, own: Mapping[str, Any]) -> None:
        """Restore this rank's result of :meth:`own_state`; not called when the number of ranks has changed."""


def advance(exchange: Exchange) -> bool:
    """Take an exchange's next step; returns whether there are more."""
    return next(exchange, True) is None


def finish(exchanges: Iterable[Exchange]) -> None:
    """Complete exchanges that have begun: first the next round of all of them, then the one after it.

    So the messages of one exchange travel during the computation or the wait of another.
    """
    left = list(exchanges)
    while left:
        left = [exchange for exchange in left if advance(exchange)]


def check_precision(tensors: Iterable[torch.Tensor]) -> None:
    """Raise TypeError for types that cannot be compressed: integers have no mean, and 16 bits no digits to spare."""
    for tensor in tensors:
        if tensor.dtype not in (torch.float32, torch.float64):
            raise TypeError(f"only tensors of float32 and float64 can be compressed, but one is {tensor.dtype}")
