"""Writes a network's file with weights in 8 bits: a quarter of the bytes; computation stays in float32.

Each row of a weight, such as the weights of one output of a layer, has its own scale. A weight becomes float32 when an
operation reads it, and is dropped after the last one that does, so that the network also takes a quarter of the memory.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from sparkdl.errors import ModelError
from sparkdl.models.network_file import IN_INT8, read_parts, scale_of
from sparkdl.models.reference import REFERENCE

__all__ = ["write_in_int8"]

_LARGEST = 127
_FEWEST = 1024
"""The fewest elements of a tensor for which int8 with a scale per row saves enough."""


def write_in_int8(source: str | Path, target: str | Path) -> Path:
    """Write the network of a file with its weights in int8, which :func:`load_network` reads. Runs anywhere.

    Its float32 matrices and kernels become int8; biases and small tensors stay float32. Raises :class:`ModelError` for
    a network that is built by its own code, and for one without such weights.
    """
    tensors, graph = read_parts(source)
    if graph["version"] == REFERENCE:
        raise ModelError(f"the network in {source} is not exported: {graph['model']!r} builds it")
    graph.pop("base", None)  # the base's tensors have been read, and are written with the others
    constants = set(graph.get("constants", ()))
    chosen = [
        name
        for name, tensor in tensors.items()
        if name not in constants
        and tensor.dtype == torch.float32
        and tensor.ndim > 1
        and tensor.numel() >= _FEWEST
        and bool(tensor.isfinite().all())
    ]
    if not chosen:
        raise ModelError(f"the network in {source} has no matrices of float32 weights that int8 could hold")
    for name in chosen:
        weight = tensors[name]
        others = tuple(range(1, weight.ndim))
        scale = weight.abs().amax(others, keepdim=True).div(_LARGEST).clamp(min=torch.finfo(torch.float32).tiny)
        tensors[name], tensors[scale_of(name)] = (weight / scale).round().to(torch.int8), scale
    save_file(tensors, target, metadata={"sparkdl": json.dumps(graph | {IN_INT8: chosen})})
    return Path(target)
