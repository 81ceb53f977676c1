"""A value as the tensor of bytes in which it travels between ranks.

Ranks meet at ports that a stranger may reach first, so that no byte that arrives may decide what is executed: the
format is that of a checkpoint, which PyTorch opens without running anything (``weights_only``).
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
    """The value that rank ``sender`` made bytes of, its tensors on the CPU.

    Raises TypeError for what holds more than tensors and plain values (numbers, texts, lists, tuples, dicts).
    """
    try:
        return torch.load(io.BytesIO(content.numpy().tobytes()), map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a pickle, or bytes that are none, may bring about
        reason = str(error).partition("\n")[0]
        raise TypeError(f"rank {sender} sent something other than tensors and plain values: {reason}") from None
