"""Concatenates tensors into one vector, and splits it again."""

from collections.abc import Sequence

import torch

__all__ = ["joined", "put_back"]


def joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The tensors' elements, concatenated; a copy, except for a single tensor whose memory has no gaps."""
    if len(tensors) == 1 and tensors[0].is_contiguous():
        return tensors[0].view(-1)
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def put_back(vector: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    """Overwrite tensors with the elements of such a vector, unless the vector is their memory."""
    for tensor, part in zip(tensors, vector.split([tensor.numel() for tensor in tensors]), strict=True):
        if tensor.data_ptr() != part.data_ptr():
            tensor.copy_(part.view_as(tensor))
