"""The inputs of some rows: a tensor, or tensors by the names of a network's arguments, in which rows come first.

One unnamed input is a tensor everywhere, and no dictionary is made for it.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import nn

__all__ = [
    "Inputs",
    "answer",
    "count_rows",
    "device_of",
    "like",
    "moved",
    "repeated",
    "shapes_of",
    "sliced",
    "stand_in",
]

Inputs: TypeAlias = torch.Tensor | dict[str, torch.Tensor]
"""A tensor of shape (n, ...), or several by name, in the order of ``prepare.inputs``."""


def answer(network: nn.Module, inputs: Inputs) -> Any:
    """What a network answers: it is called with the tensor, or with each tensor by its name. Runs anywhere."""
    return network(**inputs) if isinstance(inputs, dict) else network(inputs)


def count_rows(inputs: Inputs) -> int:
    """How many rows there are."""
    return len(next(iter(inputs.values())) if isinstance(inputs, dict) else inputs)


def device_of(inputs: Inputs) -> torch.device:
    """Where they are."""
    return (next(iter(inputs.values())) if isinstance(inputs, dict) else inputs).device


def moved(inputs: Inputs, device: torch.device | str) -> Inputs:
    """The inputs on a device, on which those that are there already stay."""
    return like(inputs, lambda tensor: tensor.to(device, non_blocking=True))


def sliced(inputs: Inputs, rows: slice) -> Inputs:
    """Some of the rows, which are not copied."""
    return like(inputs, lambda tensor: tensor[rows])


def like(inputs: Inputs, make: Callable[[torch.Tensor], torch.Tensor]) -> Inputs:
    """Inputs of the same names, each made of the tensor of that name."""
    if isinstance(inputs, dict):
        return {name: make(tensor) for name, tensor in inputs.items()}
    return make(inputs)


def repeated(inputs: Inputs, count: int) -> Inputs:
    """So many rows like the first one."""
    return like(inputs, lambda tensor: tensor[:1].expand(count, *tensor.shape[1:]).clone())


def stand_in(inputs: Inputs) -> Inputs:
    """One row like those of a batch that has none: zeros, and of masks that all of it counts.

    For a rank without rows, where a pass through a network takes all ranks.
    """

    def row(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.new_full((1, *(max(1, size) for size in tensor.shape[1:])), tensor.dtype == torch.bool)

    return like(inputs, row)


def shapes_of(inputs: Inputs) -> str:
    """The shape, or that of each input by its name, in words for an error."""
    if isinstance(inputs, dict):
        return ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in inputs.items())
    return str(tuple(inputs.shape))
