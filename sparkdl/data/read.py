"""Read row groups into memory that is given: each row goes straight to its place, with as few copies as possible."""

import threading
import zlib
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from sparkdl.data.card import LABEL_COLUMN, InputSpec
from sparkdl.data.dataset import RowGroup
from sparkdl.data.decode import decode
from sparkdl.data.shards import Segment
from sparkdl.data.storage import locate
from sparkdl.errors import DatasetError

__all__ = ["Reader"]

_BATCH_BYTES = 1 << 20
"""Inputs that Arrow decodes at a time: small enough to stay in the processor's cache until they are copied."""


class Reader:
    """Reads segments of row groups. Runs on a rank, in any number of threads."""

    def __init__(self, input: InputSpec) -> None:
        self._input = input
        self._memory = threading.local()

    def read(
        self,
        group: RowGroup,
        segment: Segment,
        inputs: NDArray[Any],
        labels: NDArray[np.int64],
        places: NDArray[np.int64],
    ) -> None:
        """Put the rows of a segment into ``inputs`` and ``labels``, the i-th row at ``places[i]``.

        Raises :class:`DatasetError` that names the file when it is missing or is not the one that was written.
        """
        content = self._content(group)
        parquet = pq.ParquetFile(pa.BufferReader(content))
        if group.inputs_at is None:
            self._decode(parquet, segment, inputs, places)
        else:
            values = np.frombuffer(content, self._input.dtype, group.rows * self._width, group.inputs_at)
            inputs[places] = values.reshape(group.rows, *self._input.shape)[segment.start : segment.stop]
        classes = parquet.read(columns=[LABEL_COLUMN], use_threads=False).column(0).to_numpy()
        labels[places] = classes[segment.start : segment.stop]

    @property
    def _width(self) -> int:
        return int(np.prod(self._input.shape))

    def _decode(
        self, parquet: pq.ParquetFile, segment: Segment, inputs: NDArray[Any], places: NDArray[np.int64]
    ) -> None:
        rows = max(_BATCH_BYTES // self._input.row_bytes, 1)
        begin = 0
        for batch in parquet.iter_batches(rows, columns=[self._input.column], use_threads=False):
            end = begin + len(batch)
            first, last = max(begin, segment.start), min(end, segment.stop)
            if first < last:
                column = batch.column(0).slice(first - begin, last - first)
                inputs[places[first - segment.start : last - segment.start]] = decode(column, self._input)
            begin = end

    def _content(self, group: RowGroup) -> memoryview:
        """The bytes of a file, verified. They are overwritten by the thread's next call."""
        filesystem, path = locate(group.path)
        memory = getattr(self._memory, "content", None)
        if memory is None or len(memory) < group.bytes:
            # Memory that is used again is not mapped and cleared again, which would cost as much as the reading.
            memory = self._memory.content = bytearray(group.bytes)
        content = memoryview(memory)[: group.bytes]
        try:
            with filesystem.open(path, "rb") as stream:
                filled = 0
                while count := stream.readinto(content[filled:]):
                    filled += count
        except FileNotFoundError:
            raise DatasetError(
                f"{group.path} is missing. Restore it, or remove the dataset and prepare it again."
            ) from None
        if filled != group.bytes or zlib.crc32(content) != group.crc32:
            raise DatasetError(f"{group.path} was altered. Restore it, or remove the dataset and prepare it again.")
        return content
