"""Writes Parquet files of one row group in which each column is one uncompressed page.

Ranks map such a file into memory, and use the values in place.
"""

import hashlib
import zlib
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sparkdl.storage import write_file

__all__ = ["plain_pages", "write_plain_pages"]

_PAGE_BYTES = 1 << 30
"""A page size that is large enough for a column to be always one page."""


def plain_pages(arrays: Sequence[pa.Array], schema: pa.Schema, *, statistics: Sequence[str] = ()) -> pa.Buffer:
    """The file's bytes. For the columns in ``statistics``, its footer has the smallest and the largest value."""
    content = pa.BufferOutputStream()
    with pq.ParquetWriter(
        content,
        schema,
        compression="NONE",  # LZ4 would save a third of Fashion-MNIST's bytes, and quarter the speed
        use_dictionary=False,
        write_statistics=list(statistics) or False,
        data_page_size=_PAGE_BYTES,
    ) as writer:
        writer.write_table(pa.Table.from_arrays(arrays, schema=schema), row_group_size=len(arrays[0]))
    return content.getvalue()


def write_plain_pages(path: str, content: pa.Buffer) -> dict[str, Any]:
    """Write the file, and return its size and hashes for the card. Runs in a task."""
    write_file(path, content, makes_folder=False)  # the folder may be gone: the job was cancelled meanwhile
    return {"bytes": content.size, "sha256": hashlib.sha256(content).hexdigest(), "crc32": zlib.crc32(content)}
