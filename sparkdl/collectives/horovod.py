"""Collectives by Horovod (Sergeev and Del Balso, 2018, arXiv 1802.05799): Gloo between CPUs, NCCL between GPUs."""

import itertools
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

import horovod.torch as hvd
import torch
from torch import nn
from typing_extensions import override

from sparkdl.collectives.collectives import Collectives, ReduceOp, is_expanded

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
        if tensor.dtype in (torch.bfloat16, torch.float16):  # Gloo does not add up the first, and the second overflows
            return self.allreduce(tensor.float(), op=op).to(tensor.dtype)
        return hvd.allreduce(tensor, op=hvd.Sum if op == "sum" else hvd.Average)  # type: ignore[no-any-return]

    @override
    def start_mean(self, tensors: Sequence[torch.Tensor], *, name: str) -> Callable[[], None]:
        if any(tensor.dtype == torch.float16 for tensor in tensors):  # divided first: a sum can overflow
            handle = hvd.grouped_allreduce_async_(list(tensors), op=hvd.Sum, name=name, prescale_factor=1 / self.size)
        else:
            handle = hvd.grouped_allreduce_async_(list(tensors), op=hvd.Average, name=name)
        return lambda: hvd.synchronize(handle)

    @override
    def broadcast(self, tensor: torch.Tensor, *, root: int = 0) -> torch.Tensor:
        copy = tensor.clone(memory_format=torch.contiguous_format)
        hvd.broadcast_(_bytes(copy), root)
        return copy

    @override
    def broadcast_parameters(self, module: nn.Module, *, root: int = 0) -> None:
        found = itertools.chain(module.parameters(), module.buffers())
        tensors = [tensor.detach() for tensor in found if tensor.numel() and not is_expanded(tensor)]
        copies = [tensor.contiguous() for tensor in tensors]
        for handle in [hvd.broadcast_async_(_bytes(copy), root) for copy in copies]:
            hvd.synchronize(handle)
        for tensor, copy in zip(tensors, copies, strict=True):
            if tensor is not copy:
                tensor.copy_(copy)

    @override
    def allgather(self, tensor: torch.Tensor) -> torch.Tensor:
        gathered = hvd.allgather(_bytes(tensor.contiguous()))
        return gathered.view(tensor.dtype).reshape(self.size, *tensor.shape)  # type: ignore[no-any-return]

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


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a tensor without gaps: what is only sent may be of any type, also of one that Horovod lacks."""
    return tensor.reshape(-1).view(torch.uint8)
