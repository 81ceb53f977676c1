"""Tensors of several dimensions as matrices, whose rows are those of their first dimension."""

import torch

__all__ = ["as_matrix", "shrinks"]


def as_matrix(tensor: torch.Tensor) -> torch.Tensor:
    """The matrix, a copy where the memory lies otherwise."""
    return tensor.reshape(len(tensor), -1)


def shrinks(tensor: torch.Tensor, *, rank: int) -> bool:
    """Whether a product of this rank has fewer numbers than the matrix; what is none does not shrink."""
    if tensor.dim() < 2 or not tensor.numel():
        return False
    rows, columns = len(tensor), tensor[0].numel()
    return (rows + columns) * rank < rows * columns
