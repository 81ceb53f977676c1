"""Numbers in messages of bytes."""

import torch

from sparkdl.collectives.communicator import bytes_of

__all__ = ["message_of", "pack", "parts_of", "unpack"]


def message_of(*parts: torch.Tensor) -> torch.Tensor:
    """Tensors of any types as one message."""
    return torch.cat([bytes_of(part) for part in parts])


def parts_of(message: torch.Tensor, *kinds: tuple[torch.dtype, tuple[int, ...]]) -> list[torch.Tensor]:
    """The tensors of a message again, whose types and shapes these are."""
    parts, begin = [], 0
    for dtype, shape in kinds:
        end = begin + torch.Size(shape).numel() * dtype.itemsize
        parts.append(message[begin:end].clone().view(dtype).view(shape))  # the copy begins where the type has to
        begin = end
    return parts


def pack(codes: torch.Tensor, *, bits: int) -> torch.Tensor:
    """Numbers of 1, 2, 4 or 8 bits, of type uint8 and shape ``(rows, columns)``: as many in a byte as fit.

    The bytes have the shape ``(rows, columns * bits / 8)``. A row's first byte has the first number of each of its
    parts, as many as fit into a byte.
    """
    planes = codes.view(len(codes), 8 // bits, -1)
    packed = planes[:, 0].clone()
    for place in range(1, 8 // bits):
        packed |= planes[:, place] << bits * place
    return packed


def unpack(packed: torch.Tensor, *, bits: int) -> torch.Tensor:
    """The numbers again."""
    planes = [(packed >> bits * place) & (2**bits - 1) for place in range(8 // bits)]
    return torch.cat(planes, dim=1)
