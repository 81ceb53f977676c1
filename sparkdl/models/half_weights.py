"""Writes a network's file with weights in half precision: half the bytes; computation stays in float32."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from sparkdl.errors import ModelError
from sparkdl.models.network_file import IN_HALF, read_parts
from sparkdl.models.reference import REFERENCE

__all__ = ["write_in_half"]


def write_in_half(source: str | Path, target: str | Path) -> Path:
    """Write the network of a file with its float32 tensors in float16. :func:`load_network` reads them as float32.

    A tensor with values that are too large for float16 stays float32. Runs anywhere. Raises :class:`ModelError` for a
    network that is built by its own code, and for one without float32 tensors.
    """
    tensors, graph = read_parts(source)
    if graph["version"] == REFERENCE:
        raise ModelError(f"the network in {source} is not exported: {graph['model']!r} builds it")
    graph.pop("base", None)  # the base's tensors have been read, and are written with the others
    halves = {name: tensor.half() for name, tensor in tensors.items() if tensor.dtype == torch.float32}
    halves = {name: half for name, half in halves.items() if bool((half.isfinite() | ~tensors[name].isfinite()).all())}
    if not halves:
        raise ModelError(f"the network in {source} has no float32 weights that float16 could hold")
    save_file(tensors | halves, target, metadata={"sparkdl": json.dumps(graph | {IN_HALF: sorted(halves)})})
    return Path(target)
