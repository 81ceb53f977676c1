"""Sends and receives a vector of bytes as a stream of Arrow record batches."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import torch

__all__ = ["SCHEMA", "receive", "stream"]

SCHEMA = pa.schema([("content", pa.uint8())])
BATCH_BYTES = 1 << 20  # small, so that encryption of one batch overlaps with sending the one before


def stream(content: torch.Tensor) -> Iterator[pa.RecordBatch]:
    """The record batches of a vector of bytes, without a copy."""
    buffer = pa.py_buffer(content.numpy())
    array = pa.Array.from_buffers(pa.uint8(), content.numel(), [None, buffer])
    for begin in range(0, content.numel(), BATCH_BYTES):
        yield pa.RecordBatch.from_arrays([array[begin : begin + BATCH_BYTES]], schema=SCHEMA)


def receive(reader: Any, content: torch.Tensor) -> None:
    """Fill a vector of bytes. Raises ValueError if their number differs: the other side has another model."""
    target, end = content.numpy(), 0
    while True:
        try:
            column = reader.read_chunk().data.column(0)
        except StopIteration:
            break
        begin, end = end, end + len(column)
        if end > len(target):
            break
        target[begin:end] = np.frombuffer(column.buffers()[1], np.uint8, len(column), column.offset)
    if end != len(target):
        raise ValueError(
            f"a message has {'more than ' if end > len(target) else ''}{min(end, len(target)):,} bytes where"
            f" {len(target):,} belong: worker and server have built different models. Let train.model return the same"
            " network each time"
        )
