"""The file of a network that no memory holds whole: room for its weights, which others fill."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

from sparkdl.models.export import export_network

__all__ = ["export_in_parts"]

LENGTH_BYTES = 8
"""With which a safetensors file begins: how long its header is."""


@contextmanager
def export_in_parts(
    module: nn.Module, path: str | Path, sample: torch.Tensor, shapes: Mapping[str, Sequence[int]]
) -> Iterator[dict[str, torch.Tensor]]:
    """Write a network that is like another one but for the shapes of some weights. Runs on the driver or on a rank.

    ``module`` is written as :func:`export_network` does, with room for weights of these ``shapes``, by name. The block
    gets all weights as tensors that lie in the file and not in memory: whoever fills them needs no room for the whole.
    Raises :class:`ModelError` as :func:`export_network` does.
    """
    path = export_network(module, path, sample)
    given = sorted(load_file(path).items(), key=lambda item: -item[1].element_size())  # each begins where its type may
    header = _header(path)
    begin = 0
    for name, tensor in given:
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
    for name, tensor in given:
        first, last = header[name]["data_offsets"]
        tensors[name] = content[first:last].view(tensor.dtype).view(header[name]["shape"])
        if name not in shapes:
            tensors[name].copy_(tensor)
    yield tensors


def _header(path: Path) -> dict[str, Any]:
    """What a safetensors file says of its tensors."""
    with path.open("rb") as stream:
        header: dict[str, Any] = json.loads(stream.read(int.from_bytes(stream.read(LENGTH_BYTES), "little")))
    return header
