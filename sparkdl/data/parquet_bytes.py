"""Reads Parquet files from memory."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["read_table"]


def read_table(content: Any, columns: Sequence[str] | None = None) -> pa.Table:
    """The columns of a Parquet file from its bytes. Runs anywhere, in the calling thread.

    ``pyarrow.parquet.read_table`` would start threads, which may hold the bytes a moment longer than the call. If the
    process ends in that moment, they cannot release a Python object any more, and it ends by SIGABRT with "terminate
    called without an active exception" (https://github.com/apache/arrow/issues/34314).
    """
    file = pq.ParquetFile(pa.BufferReader(pa.py_buffer(content)))
    return file.read(None if columns is None else [*columns], use_threads=False)
