"""Many tensors as one vector, and back."""

from collections.abc import Sequence

import torch

__all__ = ["joined", "put_back"]


def joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The numbers of some tensors one after another: of a single one without gaps its own memory, else a copy."""
    if len(tensors) == 1 and tensors[0].is_contiguous():
        return tensors[0].view(-1)
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def put_back(vector: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    """Overwrite tensors by the numbers of such a vector, unless these are in their memory already."""
    for tensor, part in zip(tensors, vector.split([tensor.numel() for tensor in tensors]), strict=True):
        if tensor.data_ptr() != part.data_ptr():
            tensor.copy_(part.view_as(tensor))
