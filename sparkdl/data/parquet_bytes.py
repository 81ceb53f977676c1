"""Parquet files that are in memory already."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["read_table"]


def read_table(content: Any, columns: Sequence[str] | None = None) -> pa.Table:
    """The columns of a Parquet file, of its bytes. Runs anywhere, in the thread that calls it.

    Threads of Arrow's would hold the bytes a moment longer than the call. A process that ends in that moment ends by
    SIGABRT, with "terminate called without an active exception": they cannot release an object of a Python that is
    gone (https://github.com/apache/arrow/issues/34314). ``pyarrow.parquet.read_table`` always starts some.
    """
    file = pq.ParquetFile(pa.BufferReader(pa.py_buffer(content)))
    return file.read(None if columns is None else [*columns], use_threads=False)
