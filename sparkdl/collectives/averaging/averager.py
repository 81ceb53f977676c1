"""What an averager answers: it decides what ranks send for the mean of their tensors, and where that is added up."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from sparkdl.collectives.communicator import Communicator

__all__ = ["Averager", "Exchange", "advance", "check_precision", "finish"]

Exchange = Iterator[None]
"""An exchange in rounds: each step of the iterator receives what belongs to the last round, and sends the next one."""


class Averager(ABC):
    """A way to the mean of tensors over ranks. Runs on ranks.

    Averagers that only send less, and those that only add up elsewhere, are put into each other: what travels and where
    it is added up are chosen apart.
    """

    @abstractmethod
    def exchange(self, tensors: Sequence[torch.Tensor], *, key: str) -> Exchange:
        """Overwrite each tensor by its mean over ranks, or by what stands for it, the same on all ranks.

        The tensors are real floating-point numbers of one type, of the same shapes and strides on all ranks; nobody
        else touches them until the exchange is over. ``key`` says which tensors they are: an averager may remember
        something about them from one exchange to the next. All ranks begin exchanges in the same order, and step
        through them by :func:`advance` and :func:`finish`.
        """

    @property
    def gathers_rows(self) -> Communicator | None:
        """The ranks among which rows of sparse gradients are gathered; None: such gradients are made dense."""
        return None

    @property
    def is_identity(self) -> bool:
        """Whether an exchange changes nothing and can be left out, as the plain mean of a single rank."""
        return False

    def end_epoch(self) -> None:
        """Called at the end of an epoch."""

    def state(self) -> dict[str, Any]:
        """What a checkpoint has to hold that is the same on all ranks: tensors and plain values."""
        return {}

    def own_state(self) -> dict[str, Any]:
        """What a checkpoint has to hold that is this rank's alone: what it has not sent yet."""
        return {}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`state` gave."""

    def load_own(self, own: Mapping[str, Any]) -> None:
        """Go on from what :meth:`own_state` gave to this rank; not called when there was another number of ranks."""


def advance(exchange: Exchange) -> bool:
    """Let an exchange take its next step; whether it goes on after it."""
    return next(exchange, True) is None


def finish(exchanges: Iterable[Exchange]) -> None:
    """Bring exchanges that have begun to their ends: the next round of all of them, then the one after it.

    Messages of one exchange travel while another one is waited for or computed.
    """
    left = list(exchanges)
    while left:
        left = [exchange for exchange in left if advance(exchange)]


def check_precision(tensors: Iterable[torch.Tensor]) -> None:
    """Raise TypeError for what is not compressed: whole numbers have no mean, and halves no digits to spare."""
    for tensor in tensors:
        if tensor.dtype not in (torch.float32, torch.float64):
            raise TypeError(f"only tensors of float32 and float64 are compressed, and one is of {tensor.dtype}")
