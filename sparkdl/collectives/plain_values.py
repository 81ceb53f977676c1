"""Converts values into tensors of bytes, as which they are sent between ranks.

A foreign process may connect to a rank's port first, so that received bytes must not be able to execute code. The
format is that of checkpoints, which PyTorch opens without executing code (``weights_only``).
"""

import io
from typing import Any

import torch

__all__ = ["as_bytes", "from_bytes"]


def as_bytes(value: Any) -> torch.Tensor:
    """The value as bytes, shape ``(length,)``."""
    content = io.BytesIO()
    torch.save(value, content)
    return torch.frombuffer(content.getbuffer(), dtype=torch.uint8)


def from_bytes(content: torch.Tensor, *, sender: int) -> Any:
    """The value in the bytes of rank ``sender``, with its tensors on the CPU.

    Raises TypeError for anything but tensors and plain values (numbers, strings, lists, tuples, dicts).
    """
    try:
        return torch.load(io.BytesIO(content.numpy().tobytes()), map_location="cpu", weights_only=True)
    except Exception as error:  # invalid bytes may raise anything
        reason = str(error).partition("\n")[0]
        raise TypeError(f"rank {sender} sent something other than tensors and plain values: {reason}") from None
