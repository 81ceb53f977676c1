"""The questions that training asks of the other ranks."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Literal, Self

import torch
from torch import nn

from sparkdl.collectives.plain_values import as_bytes, from_bytes

__all__ = ["Collectives", "ReduceOp", "is_expanded"]

ReduceOp = Literal["sum", "mean"]


class Collectives(ABC):
    """What all ranks do together: each method is called by every rank, in the same order. Runs on ranks.

    Used as a context manager; the connections live as long as its block.
    """

    @property
    @abstractmethod
    def rank(self) -> int:
        """The number of this rank."""

    @property
    @abstractmethod
    def size(self) -> int:
        """How many ranks there are."""

    @abstractmethod
    def allreduce(self, tensor: torch.Tensor, *, op: ReduceOp = "mean") -> torch.Tensor:
        """The sum or mean over ranks of a tensor of any shape, in its own type; the argument is not changed."""

    @abstractmethod
    def start_mean(self, tensors: Sequence[torch.Tensor], *, name: str) -> Callable[[], None]:
        """Begin to overwrite each tensor by its mean over ranks, all of them in one message; calling the result waits.

        Tensors of the same name meet, in whatever order ranks begin. They have the same shapes, types and strides on
        all ranks.
        """

    @abstractmethod
    def broadcast(self, tensor: torch.Tensor, *, root: int = 0) -> torch.Tensor:
        """A copy of the tensor of rank ``root``; shapes and types, any of PyTorch's, are the same everywhere."""

    @abstractmethod
    def broadcast_parameters(self, module: nn.Module, *, root: int = 0) -> None:
        """Overwrite parameters and buffers of any type, but expanded ones, in place, with those of rank ``root``."""

    @abstractmethod
    def allgather(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensors of all ranks, stacked by rank; shapes and types, any of PyTorch's, are the same everywhere."""

    def broadcast_object(self, value: Any, *, root: int = 0) -> Any:
        """The value of rank ``root``. Raises TypeError, on all ranks, unless it is plain (tensors, numbers, text …)."""
        content = as_bytes(value) if self.rank == root else torch.empty(0, dtype=torch.uint8)
        length = int(self.broadcast(torch.tensor(content.numel()), root=root))
        return from_bytes(self.broadcast(_of_length(length, content), root=root), sender=root)

    def allgather_object(self, value: Any) -> list[Any]:
        """The values of all ranks, by rank. Raises TypeError, on all ranks, unless every value is plain."""
        content = as_bytes(value)
        lengths = self.allgather(torch.tensor(content.numel())).tolist()
        contents = self.allgather(_of_length(max(lengths), content))
        return [from_bytes(contents[rank, :length], sender=rank) for rank, length in enumerate(lengths)]

    @abstractmethod
    def barrier(self) -> None:
        """Return when every rank has called it."""

    @abstractmethod
    def __enter__(self) -> Self: ...

    @abstractmethod
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def is_expanded(tensor: torch.Tensor) -> bool:
    """Whether one number in memory is several elements, so that they cannot be overwritten."""
    return any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True))


def _of_length(length: int, content: torch.Tensor) -> torch.Tensor:
    """Zeros behind what there is: messages that meet have the same shape on all ranks."""
    return nn.functional.pad(content, (0, length - content.numel()))
