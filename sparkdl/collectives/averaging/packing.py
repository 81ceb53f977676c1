"""Packs numbers into messages of bytes."""

import torch

from sparkdl.collectives.communicator import bytes_of

__all__ = ["message_of", "pack", "parts_of", "unpack"]


def message_of(*parts: torch.Tensor) -> torch.Tensor:
    """Tensors of any types as one message of bytes."""
    return torch.cat([bytes_of(part) for part in parts])


def parts_of(message: torch.Tensor, *kinds: tuple[torch.dtype, tuple[int, ...]]) -> list[torch.Tensor]:
    """The tensors in a message, of these types and shapes."""
    parts, begin = [], 0
    for dtype, shape in kinds:
        end = begin + torch.Size(shape).numel() * dtype.itemsize
        parts.append(message[begin:end].clone().view(dtype).view(shape))  # the copy is aligned
        begin = end
    return parts


def pack(codes: torch.Tensor, *, bits: int) -> torch.Tensor:
    """Pack numbers of 1, 2, 4 or 8 bits, given as uint8 of shape ``(rows, columns)``, into as few bytes as possible.

    The bytes have the shape ``(rows, columns * bits / 8)``. Each row is divided into 8 / bits parts of equal length,
    and its first byte has the first number of each part.
    """
    planes = codes.view(len(codes), 8 // bits, -1)
    packed = planes[:, 0].clone()
    for place in range(1, 8 // bits):
        packed |= planes[:, place] << bits * place
    return packed


def unpack(packed: torch.Tensor, *, bits: int) -> torch.Tensor:
    """The numbers that :func:`pack` packed."""
    planes = [(packed >> bits * place) & (2**bits - 1) for place in range(8 // bits)]
    return torch.cat(planes, dim=1)
