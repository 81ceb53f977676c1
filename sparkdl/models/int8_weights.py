"""The file of a network with its weights in 8 bits: a quarter of the bytes, computed with as before.

Each row of a weight, such as what one output of a layer reads, has a scale of its own. A weight becomes float32 where
an operation reads it, and is dropped behind the last one that does, so that the network takes a quarter of the memory,
too.
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
"""Numbers of a tensor below which a scale for each row is not worth it."""


def write_in_int8(source: str | Path, target: str | Path) -> Path:
    """Write the network of a file with its weights in int8, which :func:`load_network` reads. Runs anywhere.

    Those are its float32 matrices and kernels; biases and what is small stay as they are. Raises :class:`ModelError`
    for a network that is built by its own code, and for one without such weights.
    """
    tensors, graph = read_parts(source)
    if graph["version"] == REFERENCE:
        raise ModelError(f"the network in {source} is not exported: {graph['model']!r} builds it")
    graph.pop("base", None)  # whose tensors are among them now
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
