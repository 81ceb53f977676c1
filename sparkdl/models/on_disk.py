"""Builds a network whose weights take no memory: large tensors are stored in files on this machine's disk."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only
from typing_extensions import override

__all__ = ["tensors_on_disk"]

LARGE_BYTES = 1 << 20
"""The size from which a tensor is stored on disk."""


@contextmanager
def tensors_on_disk() -> Iterator[None]:
    """Within this context, large tensors that are made are stored on disk, with the same values. Runs anywhere.

    A tensor is in memory only while it is made. Its file, in ``TMPDIR``, is removed with the tensor. Reads and writes
    go through the kernel's page cache, which is released when memory is short.
    """
    with _OnDisk():
        yield


class _OnDisk(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {_storage(each) for each in tree_flatten((args, kwargs))[0] if isinstance(each, torch.Tensor)}

        def kept(tensor: torch.Tensor) -> torch.Tensor:
            new = tensor.device.type == "cpu" and tensor.layout == torch.strided and type(tensor) is torch.Tensor
            if not new or tensor.nbytes < LARGE_BYTES or not tensor.is_contiguous() or _storage(tensor) in given:
                return tensor
            with tempfile.NamedTemporaryFile(prefix="sparkdl-weights-") as file:
                place = torch.from_file(file.name, shared=True, size=tensor.numel(), dtype=tensor.dtype)
            return place.view(tensor.shape).copy_(tensor)

        return tree_map_only(torch.Tensor, kept, func(*args, **(kwargs or {})))


def _storage(tensor: torch.Tensor) -> int:
    """The identity of a tensor's memory: equal for tensors that share it."""
    return tensor.untyped_storage()._cdata if tensor.layout == torch.strided else id(tensor)
