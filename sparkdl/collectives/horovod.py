"""Collectives by Horovod (Sergeev and Del Balso, 2018, arXiv 1802.05799): Gloo between CPUs, NCCL between GPUs."""

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

import horovod.torch as hvd
import torch
from torch import nn
from typing_extensions import override

from sparkdl.collectives.collectives import Collectives, ReduceOp

__all__ = ["HorovodCollectives"]


class HorovodCollectives(Collectives):
    """Connects to the other ranks on entering, by the environment that a launch has set; without one, a single rank.

    Tensors on a GPU are reduced there by NCCL, when Horovod was built with it.
    """

    @property
    @override
    def rank(self) -> int:
        return int(hvd.rank())

    @property
    @override
    def size(self) -> int:
        return int(hvd.size())

    @override
    def allreduce(self, tensor: torch.Tensor, *, op: ReduceOp = "mean") -> torch.Tensor:
        return hvd.allreduce(tensor, op=hvd.Sum if op == "sum" else hvd.Average)  # type: ignore[no-any-return]

    @override
    def start_mean(self, tensors: Sequence[torch.Tensor], *, name: str) -> Callable[[], None]:
        handle = hvd.grouped_allreduce_async_(list(tensors), op=hvd.Average, name=name)
        return lambda: hvd.synchronize(handle)

    @override
    def broadcast(self, tensor: torch.Tensor, *, root: int = 0) -> torch.Tensor:
        return hvd.broadcast(tensor, root)  # type: ignore[no-any-return]

    @override
    def broadcast_parameters(self, module: nn.Module, *, root: int = 0) -> None:
        hvd.broadcast_parameters(module.state_dict(), root)

    @override
    def broadcast_object(self, value: Any, *, root: int = 0) -> Any:
        # Messages of the same name meet; Horovod would name this one after the type that the value has on each rank.
        return hvd.broadcast_object(value, root, name="object")

    @override
    def allgather_object(self, value: Any) -> list[Any]:
        return hvd.allgather_object(value, name="objects")  # type: ignore[no-any-return]

    @override
    def barrier(self) -> None:
        hvd.barrier()

    def __enter__(self) -> Self:
        hvd.init()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        hvd.shutdown()
