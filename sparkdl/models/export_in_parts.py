"""Writes the file of a network that does not fit into memory: with space for its weights, which are filled in later."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import nn

from sparkdl.inputs.tensors import Inputs
from sparkdl.models.export import TracedNetwork, trace_network, write_network
from sparkdl.models.full_state import full_state
from sparkdl.models.room_in_file import room_in_file

__all__ = ["export_in_parts", "write_in_parts"]


def export_in_parts(
    module: nn.Module, path: str | Path, sample: Inputs, shapes: Mapping[str, Sequence[int]]
) -> dict[str, torch.Tensor]:
    """Write a network that is equal to ``module`` except for the ``shapes`` of some weights. On the driver or a rank.

    ``module`` is traced and checked as by :func:`export_network`, whose errors it raises, and written as by
    :func:`write_in_parts`.
    """
    traced = trace_network(module, sample)
    write_network(module, path, sample, traced)
    tensors = write_in_parts(path, traced, full_state(module), shapes)
    for name, value in full_state(module).items():
        if name not in shapes:
            tensors[name].copy_(value)
    return tensors


def write_in_parts(
    path: str | Path,
    traced: TracedNetwork,
    like: Mapping[str, torch.Tensor],
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> dict[str, torch.Tensor]:
    """Write a network with space for weights like these, with other ``shapes`` for those named there. Runs anywhere.

    Returns the weights as tensors that are mapped to the file, so that they can be filled in one by one without having
    all of them in memory.
    """
    tensors = room_in_file(Path(path), {**like, **traced.constants}, shapes or {}, traced.metadata)
    for name, value in traced.constants.items():
        tensors[name].copy_(value)
    return tensors
