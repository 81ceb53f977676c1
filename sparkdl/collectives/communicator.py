"""The communication between ranks that training needs."""

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Literal, Self

import torch
from torch import nn

from sparkdl.collectives.plain_values import as_bytes, from_bytes

__all__ = ["HOST", "Arrival", "Communicator", "Messenger", "ReduceOp", "Wait", "bytes_of", "is_expanded"]

ReduceOp = Literal["sum", "mean"]
HOST = "SPARKDL_HOST"
"""The environment variable with the name of a rank's host."""
BROADCAST_BYTES = 8 << 20  # size of messages; small tensors are sent together
Wait = Callable[[], None]
"""Returns when the operation that was begun is done."""
Arrival = Callable[[], list[torch.Tensor]]
"""Waits for the tensors of all ranks, and returns them by rank."""


class Communicator(ABC):
    """Collective operations among all ranks of a run, or a group of ranks. Runs on ranks.

    Each method is called by every rank of the group, in the same order. Tensors of one call have the same shape and
    type on all ranks, and their results are the same on all ranks to the last bit. Used as a context manager; the
    connections live as long as its block.
    """

    def __init__(self, parent: "Communicator | None" = None) -> None:
        self._parent = parent
        """For a group: the communicator that was split. Bytes and seconds of the group are counted there, too."""
        self.bytes_sent = 0
        """Bytes of the tensors that this rank has given to exchanges; how often a library sends each byte
        depends on its algorithm."""
        self.seconds_waited = 0.0
        """Seconds that this rank has spent in exchanges, waiting for other ranks or for the network."""
        self.on_exchange: Callable[[float, float], None] | None = None
        """Called with the beginning (by ``time.perf_counter``) and the seconds of each of these waits."""

    @property
    @abstractmethod
    def rank(self) -> int:
        """The number of this rank in the group."""

    @property
    @abstractmethod
    def size(self) -> int:
        """How many ranks the group has."""

    @abstractmethod
    def split(self, color: int) -> "Communicator":
        """The group of the ranks that pass the same color, numbered in the order of their ranks here.

        Groups are closed with the communicator of all ranks.
        """

    @abstractmethod
    def all_reduce(self, tensor: torch.Tensor, *, op: ReduceOp = "mean") -> torch.Tensor:
        """The sum or mean over ranks of a tensor of any shape, in its own type; the argument is not changed."""

    @abstractmethod
    def start_mean(self, tensors: Sequence[torch.Tensor], *, name: str) -> Wait:
        """Begin to overwrite each tensor with its mean over ranks, all in one message; calling the result waits.

        Ranks begin messages in the same order and under the same names. Tensors of one message have one type, and the
        same strides on all ranks, and must not be used until the wait is over.
        """

    @abstractmethod
    def start_all_gather(self, tensor: torch.Tensor, *, name: str) -> Arrival:
        """Begin to gather the tensors of all ranks, of any PyTorch type; calling the result waits for them.

        Ranks begin messages in the same order and under the same names.
        """

    @abstractmethod
    def broadcast(self, tensor: torch.Tensor, *, root: int = 0) -> torch.Tensor:
        """A copy of the tensor of rank ``root``, of any PyTorch type."""

    @abstractmethod
    def barrier(self) -> None:
        """Return when every rank has called it."""

    @abstractmethod
    def close(self) -> None:
        """Close the connections. Ranks that still wait for this one get an error."""

    def all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """The tensors of all ranks, by rank, of any PyTorch type."""
        return self.start_all_gather(tensor, name="gather")()

    def broadcast_object(self, value: Any, *, root: int = 0) -> Any:
        """The value of rank ``root``. Raises TypeError on all ranks, unless it has only tensors and plain values."""
        content = as_bytes(value) if self.rank == root else torch.empty(0, dtype=torch.uint8)
        length = int(self.broadcast(torch.tensor(content.numel()), root=root))
        sent = self.broadcast(content if self.rank == root else torch.empty(length, dtype=torch.uint8), root=root)
        return from_bytes(sent, sender=root)

    def all_gather_object(self, value: Any) -> list[Any]:
        """The values of all ranks, by rank. Raises TypeError on all ranks for more than tensors and plain values."""
        content = as_bytes(value)
        lengths = [int(length) for length in self.all_gather(torch.tensor(content.numel()))]
        contents = self.all_gather(nn.functional.pad(content, (0, max(lengths) - content.numel())))
        return [from_bytes(contents[rank][:length], sender=rank) for rank, length in enumerate(lengths)]

    def hosts(self) -> list[str]:
        """The name of each rank's host, by rank."""
        return [str(host) for host in self.all_gather_object(os.environ.get(HOST, ""))]

    def broadcast_module(self, module: nn.Module, *, root: int = 0) -> None:
        """Overwrite parameters and buffers, except expanded ones, in place with those of rank ``root``."""
        found = [*module.parameters(), *module.buffers()]
        tensors = []
        for tensor in (each.detach() for each in found if each.numel() and not is_expanded(each)):
            if tensor.nbytes <= BROADCAST_BYTES or not tensor.is_contiguous():
                tensors.append(tensor)
                continue
            for piece in bytes_of(tensor).split(BROADCAST_BYTES):  # memory may not suffice for a copy of the whole
                piece.copy_(self.broadcast(piece, root=root))
        while tensors:
            together = [tensors.pop(0)]
            while tensors and sum(tensor.nbytes for tensor in together) + tensors[0].nbytes <= BROADCAST_BYTES:
                together.append(tensors.pop(0))
            message = torch.cat([bytes_of(tensor.contiguous()) for tensor in together])
            parts = self.broadcast(message, root=root).split([tensor.nbytes for tensor in together])
            for tensor, part in zip(together, parts, strict=True):
                tensor.copy_(part.clone().view(tensor.dtype).view(tensor.shape))

    def count_exchange(self, sent: int, started: float, seconds: float) -> None:
        """Count an exchange outside this class: bytes, beginning (by ``time.perf_counter``) and seconds of waiting."""
        self.bytes_sent += sent
        self.seconds_waited += seconds
        if self.on_exchange:
            self.on_exchange(started, seconds)
        if self._parent:
            self._parent.count_exchange(sent, started, seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def _counted(self, *tensors: torch.Tensor) -> Iterator[None]:
        """Count the bytes of tensors that are exchanged in this block, and its seconds."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.count_exchange(sum(tensor.nbytes for tensor in tensors), started, time.perf_counter() - started)


class Messenger(Communicator):
    """A communicator with messages between pairs of ranks, which not every library offers.

    Messages with one tag from one rank to another arrive in the order in which they were sent.
    """

    @abstractmethod
    def split(self, color: int) -> "Messenger":
        """As :meth:`Communicator.split`."""

    @abstractmethod
    def start_receive(self, tensor: torch.Tensor, *, source: int, tag: int = 0) -> Wait:
        """Begin to overwrite a tensor with a message of rank ``source``. Begin before sending, to overlap both."""

    @abstractmethod
    def start_send(self, tensor: torch.Tensor, *, target: int, tag: int = 0) -> Wait:
        """Begin to send a tensor to rank ``target``, which receives one of the same shape and type."""

    def start_swap(self, given: torch.Tensor, taken: torch.Tensor, *, peer: int, tag: int = 0) -> Wait:
        """Begin to send one tensor to rank ``peer``, and to overwrite another one with that rank's tensor."""
        receiving = self.start_receive(taken, source=peer, tag=tag)
        sending = self.start_send(given, target=peer, tag=tag)

        def wait() -> None:
            receiving()
            sending()

        return wait


def is_expanded(tensor: torch.Tensor) -> bool:
    """Whether several elements share one number in memory, so that they cannot be overwritten."""
    return any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True))


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's elements as bytes, so that tensors of types that a library does not know can be sent."""
    return tensor.reshape(-1).view(torch.uint8)
