"""The file of a network that no memory holds whole: room for its weights, which others fill."""

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
    """Write a network that is like another one but for the shapes of some weights. Runs on the driver or on a rank.

    ``module`` is traced and tried as :func:`export_network` does, and written as :func:`write_in_parts` does. Raises
    :class:`ModelError` as :func:`export_network` does.
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
    """Write a network with room for weights like these, of other ``shapes`` where they are named. Runs anywhere.

    Returns the weights as tensors that lie in the file and not in memory: whoever fills them needs no room for the
    whole.
    """
    tensors = room_in_file(Path(path), {**like, **traced.constants}, shapes or {}, traced.metadata)
    for name, value in traced.constants.items():
        tensors[name].copy_(value)
    return tensors
