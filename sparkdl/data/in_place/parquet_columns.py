"""Reads columns of a row group of a Parquet file, from its verified bytes. Runs anywhere."""

import io
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from typing_extensions import Buffer, override

from sparkdl.data.row_groups import ForeignRowGroup
from sparkdl.errors import DatasetError
from sparkdl.storage import open_file, read_file

__all__ = ["decode_columns", "read_footer", "span_of"]

_FOOTERS = 64
"""The number of footers that a process caches: it alternates between row groups of many files."""


@lru_cache(maxsize=_FOOTERS)
def read_footer(path: str, size: int) -> pq.FileMetaData:
    """The footer of a Parquet file of ``size`` bytes. Raises :class:`DatasetError` if it is missing or not Parquet."""
    try:
        with open_file(path) as stream:
            return pq.read_metadata(stream)
    except FileNotFoundError:
        raise DatasetError(f"{path} is missing. Restore it, or prepare again.") from None
    except pa.ArrowException as error:
        raise DatasetError(f"{path} is not a Parquet file: {str(error).splitlines()[0]}") from None


def span_of(footer: pq.FileMetaData, number: int, columns: Sequence[str]) -> tuple[int, int, int]:
    """The begin and the end of these columns of a row group in the file, and their size after decompression."""
    group = footer.row_group(number)
    chunks = [group.column(place) for place in range(group.num_columns)]
    names = set(columns)
    wanted = [chunk for chunk in chunks if chunk.path_in_schema.partition(".")[0] in names]
    begins = [chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset for chunk in wanted]
    ends = [begin + chunk.total_compressed_size for begin, chunk in zip(begins, wanted, strict=True)]
    return min(begins), max(ends), sum(chunk.total_uncompressed_size for chunk in wanted)


def decode_columns(group: ForeignRowGroup, columns: Sequence[str], content: Buffer | None = None) -> pa.Table:
    """All rows of a row group. ``content`` is the bytes of its span; if it is not given, they are read from the file.

    Raises :class:`DatasetError` if these bytes are missing or were altered.
    """
    if content is None:
        content = read_file(group.path, start=group.begin, end=group.end)
    source = _PartOfFile(content, group.begin, group.bytes)
    try:
        file = pq.ParquetFile(source, metadata=read_footer(group.path, group.bytes))
        return file.read_row_group(group.number, columns=[*columns], use_threads=False)
    except (pa.ArrowException, OSError) as error:
        told = str(error).splitlines()[0]
        raise DatasetError(f"row group {group.number} of {group.path} cannot be decoded: {told}") from None


class _PartOfFile(io.RawIOBase):
    """A file-like object that has only some bytes of a file: those that its reader needs."""

    def __init__(self, content: Buffer, begin: int, size: int) -> None:
        self._content, self._begin, self._size, self._at = memoryview(content), begin, size, 0

    @override
    def readable(self) -> bool:
        return True

    @override
    def seekable(self) -> bool:
        return True

    @override
    def tell(self) -> int:
        return self._at

    @override
    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    @override
    def readinto(self, buffer: Any) -> int:
        start = self._at - self._begin
        if not 0 <= start <= len(self._content):
            raise OSError(f"byte {self._at:,} is outside of the part that was read")
        found = self._content[start : start + len(buffer)]
        buffer[: len(found)] = found
        self._at += len(found)
        return len(found)
