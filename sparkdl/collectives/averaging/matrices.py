"""Tensors of several dimensions as matrices, with a row for each index of the first dimension."""

import torch

__all__ = ["as_matrix", "shrinks"]


def as_matrix(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as a matrix, copied only if its memory layout requires it."""
    return tensor.reshape(len(tensor), -1)


def shrinks(tensor: torch.Tensor, *, rank: int) -> bool:
    """Whether factors of this rank have fewer numbers than the matrix; False for vectors and scalars."""
    if tensor.dim() < 2 or not tensor.numel():
        return False
    rows, columns = len(tensor), tensor[0].numel()
    return (rows + columns) * rank < rows * columns
