"""Writes a safetensors file with space for tensors, which are filled in place, without a second copy in memory."""

import json
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

__all__ = ["room_in_file"]

LENGTH_BYTES = 8
"""The bytes at the beginning of a safetensors file that hold the length of its header."""


def room_in_file(
    path: Path, like: Mapping[str, torch.Tensor], shapes: Mapping[str, Sequence[int]], metadata: Mapping[str, str]
) -> dict[str, torch.Tensor]:
    """Write a file with space for tensors of the types of ``like``, with these shapes or else theirs. Runs anywhere.

    Returns the tensors by name; they are mapped to the file, and have no values yet.
    """
    save_file({name: tensor.new_empty(0, device="cpu") for name, tensor in like.items()}, path, dict(metadata))
    header = _header(path)
    ordered = sorted(like.items(), key=lambda item: -item[1].element_size())  # so that all tensors are aligned
    begin = 0
    for name, tensor in ordered:
        shape = list(shapes.get(name, tensor.shape))
        end = begin + prod(shape) * tensor.element_size()
        header[name] |= {"shape": shape, "data_offsets": [begin, end]}
        begin = end
    written = json.dumps(header).encode()
    written += b" " * (-len(written) % LENGTH_BYTES)
    with path.open("wb") as stream:
        stream.write(len(written).to_bytes(LENGTH_BYTES, "little") + written)
        stream.truncate(stream.tell() + begin)
    bytes_ = torch.from_file(str(path), shared=True, size=path.stat().st_size, dtype=torch.uint8)
    content = bytes_[LENGTH_BYTES + len(written) :]
    tensors = {}
    for name, tensor in ordered:
        first, last = header[name]["data_offsets"]
        tensors[name] = content[first:last].view(tensor.dtype).view(header[name]["shape"])
    return tensors


def _header(path: Path) -> dict[str, Any]:
    """The header of a safetensors file."""
    with path.open("rb") as stream:
        header: dict[str, Any] = json.loads(stream.read(int.from_bytes(stream.read(LENGTH_BYTES), "little")))
    return header
