"""Reads row groups into given memory: each row is copied directly from the mapped file to its final position."""

import mmap
import os
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparkdl.data.card import Card, InputSpec
from sparkdl.data.label_spec import LabelSpec
from sparkdl.data.reading.shards import Segment
from sparkdl.data.row_groups import ForeignRowGroup, RowGroup
from sparkdl.data.sparse_rows import Rows, read_rows, read_weights
from sparkdl.errors import DatasetError
from sparkdl.storage import local_path, read_file

__all__ = [
    "LENGTH_BYTES",
    "read_segment",
    "read_sparse_segment",
    "verified_content",
    "view_inputs",
    "view_labels",
    "view_weights",
]

LENGTH_BYTES = {"image": 4, "vector": 0}
"""The bytes in front of each row: Parquet's PLAIN encoding of binary values begins with their length."""


def read_segment(
    group: RowGroup,
    segment: Segment,
    card: Card,
    inputs: NDArray[Any],
    labels: NDArray[Any],
    weights: NDArray[np.float64] | None,
    places: NDArray[np.int64],
) -> None:
    """Put the rows of a segment into ``inputs``, ``labels`` and ``weights``, the i-th at ``places[i]``. Runs on a rank.

    Every file has one PLAIN page per column, and the card has the offset of its values, so nothing has to be decoded.
    Raises :class:`DatasetError`, with the file's name, if it is missing or was altered.
    """
    content = verified_content(group)
    rows = slice(segment.start, segment.stop)
    inputs.reshape(len(inputs), -1)[places] = view_inputs(content, group.inputs_at, group.rows, card.input)[rows]
    labels[places] = view_labels(content, group.labels_at, group.rows, card.label)[rows]
    if weights is not None:
        weights[places] = view_weights(content, group.weights_at, group.rows)[rows]


def read_sparse_segment(group: RowGroup, segment: Segment, card: Card) -> tuple[Rows, NDArray[np.float64] | None]:
    """The rows of a segment and their weights, if they have any, in the order of the file. Runs on a rank.

    Raises :class:`DatasetError`, with the file's name, if it is missing or was altered.
    """
    content = verified_content(group)
    weights = None if card.mean_weight is None else read_weights(content)[segment.start : segment.stop]
    return read_rows(content).part(segment.start, segment.stop), weights


def view_inputs(content: Any, begin: int, rows: int, input: InputSpec) -> NDArray[Any]:
    """The inputs in a file's bytes as a view of shape (rows, values)."""
    length = LENGTH_BYTES[input.kind]
    records = np.frombuffer(content, np.uint8, rows * (length + input.row_bytes), begin).reshape(rows, -1)
    return records[:, length:].view(input.dtype)


def view_labels(content: Any, begin: int, rows: int, label: LabelSpec) -> NDArray[Any]:
    """The labels in a file's bytes as a view of shape (rows, *label.shape)."""
    length = label.length_bytes
    records = np.frombuffer(content, np.uint8, rows * (length + label.row_bytes), begin).reshape(rows, -1)
    return records[:, length:].view(label.dtype).reshape(rows, *label.shape)


def view_weights(content: Any, begin: int, rows: int) -> NDArray[np.float64]:
    """The weights in a file's bytes as a view."""
    return np.frombuffer(content, np.float64, rows, begin)


def verified_content(group: RowGroup) -> mmap.mmap | memoryview | bytes:
    """The verified bytes of a row group. Runs anywhere. Raises :class:`DatasetError` with the file's name.

    A local file is mapped into memory: reading it would take as long as everything else together.
    """
    path, (begin, end) = local_path(group.path), group.span
    is_whole = not isinstance(group, ForeignRowGroup)
    try:
        if path is None:
            content: mmap.mmap | memoryview | bytes = (
                read_file(group.path) if is_whole else read_file(group.path, start=begin, end=end)
            )
            _verify(content, group)
            return content
        with path.open("rb") as stream:
            status = os.fstat(stream.fileno())
            if not status.st_size:  # an empty file cannot be mapped
                _verify(b"", group)
            mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
            content = mapped if is_whole else memoryview(mapped)[begin:end]
    except FileNotFoundError:
        raise DatasetError(
            f"{group.path} is missing. Restore it, or remove the dataset and prepare it again."
        ) from None
    state = hash((path, begin, group.crc32, status.st_ino, status.st_size, status.st_mtime_ns))
    if state not in _verified:  # verified once, unless the file's size or time changes
        _verify(content, group)
        _verified.add(state)
    return content


_verified: set[int] = set()
"""The states of local files that this process has verified, as hashes, because there may be a million."""


def _verify(content: mmap.mmap | memoryview | bytes, group: RowGroup) -> None:
    begin, end = group.span
    if len(content) != end - begin or zlib.crc32(content) != group.crc32:
        raise DatasetError(f"{group.path} was altered. Restore it, or remove the dataset and prepare it again.")
