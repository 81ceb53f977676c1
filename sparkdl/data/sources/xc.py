"""Files in the format of the Extreme Classification Repository (http://manikvarma.org/downloads/XC/XMLRepository.html).

The first line is ``rows features labels``; each other line is ``label,label feature:value feature:value ...``, where
labels and features are numbered from 0. A line that starts with a space has no labels.
"""

import gzip
import io
import re
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from sparkdl.data.bad_rows import PROBLEM, PROBLEM_TYPE
from sparkdl.data.sources.xc_lines import LARGEST, BadLine, Lines, parse_lines
from sparkdl.errors import DataError
from sparkdl.settings import Source
from sparkdl.storage import expand, join, list_folder, local_path, open_file, read_file

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["read_xc"]

_CHUNK_BYTES = 1 << 24
"""The bytes that one task reads: many lines, but only a part of a large file."""
_BLOCK_BYTES = 1 << 20
"""The bytes that are parsed at a time: the numbers from so many characters fit into a core's cache."""
_UNKNOWN = sys.maxsize
_DAMAGES = EOFError, gzip.BadGzipFile, zlib.error
"""The exceptions for a gzipped file that is truncated or altered."""
_GZIP_MAGIC, _MARK = b"\x1f\x8b", b"\xef\xbb\xbf"
"""The first bytes of a gzipped file, and the byte order mark that some editors put before text in UTF-8."""
_SPLITS = {"train": r"train|trn", "test": r"test|tst", "validation": r"valid|val|dev"}
"""For each split, the part of a file's name that assigns the file to it."""
_VECTOR = pa.struct(
    [
        ("type", pa.int8()),
        ("size", pa.int32()),
        ("indices", pa.list_(pa.int32())),
        ("values", pa.list_(pa.float64())),
    ]
)
"""The Arrow type of Spark ML's vectors; type 0 is sparse."""
_BAD = pa.struct([(name, pa.string() if kind == "string" else pa.int64()) for name, kind in PROBLEM_TYPE.items()])
_SCHEMA = pa.schema([("features", _VECTOR), ("label", pa.list_(pa.int64())), ("split", pa.string()), (PROBLEM, _BAD)])


@dataclass(frozen=True)
class _File:
    """One file, with the numbers in its first line."""

    path: str
    split: str
    begin: int
    end: int
    """With ``begin``: the offsets at which its lines begin and end; for a gzipped file, the end is not known."""
    rows: int
    features: int
    labels: int

    @property
    def is_gzipped(self) -> bool:
        """Whether it is gzipped. Its offsets are then those of the unpacked text, which a single task reads."""
        return self.end == _UNKNOWN


class _Chunk(NamedTuple):
    """The lines of a file that begin from byte ``begin`` to before byte ``end``."""

    file: _File
    begin: int
    end: int


def read_xc(source: Source, spark: "SparkSession") -> "DataFrame":
    """The rows of one or several files. Runs on the driver; Spark tasks read and parse parts of files.

    The columns are ``features`` (a sparse vector), ``label`` (an array of whole numbers), ``_problem`` (what is wrong
    with a line, its file and its number, or null), and, unless there is a single file, ``split``: the key in
    ``source.path``, or from the names of the files in a folder. Features and labels of bad lines are null. A line is
    bad if it is not in the format, has labels or features beyond the header's numbers, has a feature twice, or has no
    labels or no features; a header with a wrong number of rows is reported as a bad line, too. A label that a line has
    twice counts once. Files may be gzipped; then one task reads the whole file. Raises :class:`DataError` if there is
    no file, a header is invalid, or headers do not agree.
    """
    from pyspark.ml.linalg import VectorUDT
    from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType

    assert source.path is not None
    files = [_open(path, split) for split, path in _find_files(source.path)]
    widths = {(file.features, file.labels) for file in files}
    if len(widths) > 1:
        said = "; ".join(f"{file.path}: {file.features} features, {file.labels} labels" for file in files)
        raise DataError(f"the files' first lines do not agree: {said}")
    chunks = [
        _Chunk(file, begin, file.end if file.is_gzipped else min(begin + _CHUNK_BYTES, file.end))
        for file in files
        for begin in ([file.begin] if file.is_gzipped else range(file.begin, file.end, _CHUNK_BYTES))
    ]
    counted = _map_chunks(spark, len(chunks), partial(_count_lines, chunks), "chunk bigint, lines bigint").collect()
    lines = [row.lines for row in sorted(counted, key=lambda row: row.chunk)]
    schema = StructType(
        [
            StructField("features", VectorUDT()),
            StructField("label", ArrayType(LongType())),
            StructField("split", StringType()),
            StructField(
                PROBLEM,
                StructType(
                    [StructField(n, StringType() if k == "string" else LongType()) for n, k in PROBLEM_TYPE.items()]
                ),
            ),
        ]
    )
    rows = _map_chunks(spark, len(chunks), partial(_read_chunks, chunks, _first_lines(chunks, lines)), schema)
    return rows if len(files) > 1 or isinstance(source.path, dict) else rows.drop("split")


def _find_files(path: str | dict[str, str]) -> list[tuple[str, str]]:
    """The split and the path of each file."""
    if isinstance(path, dict):
        return [(split, name) for split, one in path.items() for name in _glob(one)]
    names = _glob(path)
    if len(names) == 1:
        return [("train", names[0])]
    found = []
    for name in names:
        stem = name.rpartition("/")[2].lower()
        splits = [split for split, pattern in _SPLITS.items() if re.search(pattern, stem)]
        if len(splits) != 1:
            raise DataError(f"the name of {name} contains no split; set source.path to {{train: ..., test: ...}}")
        found.append((splits[0], name))
    return found


def _glob(path: str) -> list[str]:
    found = expand(str(local_path(path) or path))  # absolute, because tasks have another working directory
    if not found:
        raise DataError(f"there is no file {path}; `xc` expects text with the first line `rows features labels`")
    below = {place: [join(place, entry.name) for entry in list_folder(place) if not entry.is_folder] for place in found}
    return [name for place, names in below.items() for name in names or [place]]


def _open(path: str, split: str) -> _File:
    try:
        with open_file(path) as stream:
            is_gzipped = stream.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
            stream.seek(0)
            header = (gzip.GzipFile(fileobj=stream) if is_gzipped else stream).readline()
            size = _UNKNOWN if is_gzipped else stream.seek(0, io.SEEK_END)
    except (FileNotFoundError, IsADirectoryError):
        raise DataError(
            f"there is no file {path}; `xc` expects text with the first line `rows features labels`"
        ) from None
    except _DAMAGES as error:
        raise DataError(f"{path} cannot be unpacked: {error}; fetch it again") from None
    begin, header = len(header), header.removeprefix(_MARK)
    if not re.fullmatch(rb"\s*\d+\s+\d+\s+\d+\s*", header):
        raise DataError(f"{path}:1 must be `rows features labels`, three whole numbers, not {header[:60]!r}")
    rows, features, labels = map(int, header.split())
    if not rows or not features or not labels or size <= begin:
        raise DataError(
            f"{path} promises {rows} rows of {features} features and {labels} labels; there is nothing to learn"
        )
    if max(features, labels) > LARGEST:
        raise DataError(f"{path} promises {features} features and {labels} labels; at most {LARGEST:,} of each can be")
    return _File(path, split, begin, size, rows, features, labels)


def _map_chunks(spark: "SparkSession", count: int, function: Any, schema: Any) -> "DataFrame":
    return spark.range(count, numPartitions=count).mapInArrow(function, schema)


def _count_lines(chunks: Sequence[_Chunk], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        found = []
        for index in batch.column(0).to_pylist():
            chunk = chunks[index]
            if chunk.file.is_gzipped:  # no other chunk comes after it
                found.append(0)
                continue
            found.append(read_file(chunk.file.path, start=chunk.begin - 1, end=chunk.end - 1).count(b"\n"))
        yield pa.RecordBatch.from_arrays([batch.column(0), pa.array(found, pa.int64())], names=["chunk", "lines"])


def _first_lines(chunks: Sequence[_Chunk], lines: Sequence[int]) -> list[int]:
    """The number in its file of the first line of each chunk; the header is line 1."""
    firsts = []
    number = 2
    for index, chunk in enumerate(chunks):
        if index and chunks[index - 1].file is not chunk.file:
            number = 2
        firsts.append(number)
        number += lines[index]
    return firsts


def _read_chunks(
    chunks: Sequence[_Chunk], first_lines: Sequence[int], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for index in batch.column(0).to_pylist():
            yield from _read_chunk(chunks[index], first_lines[index])


def _read_chunk(chunk: _Chunk, number: int) -> Iterator[pa.RecordBatch]:
    file = chunk.file
    bad: list[BadLine] = []
    for block in _blocks(chunk):
        lines = parse_lines(block, file.features, file.labels)
        bad += [line._replace(number=number + line.number) for line in lines.bad]
        number += lines.num_lines
        if len(lines.offsets) > 1:
            yield _to_batch(lines, file)
    rows = number - 2
    if chunk.end == file.end and rows != file.rows:
        bad.append(BadLine(number - 1, "the header promises another number of rows", f"{file.rows}, not {rows}"))
    if bad:
        problems = [{"kind": line.kind, "file": file.path, "line": line.number, "detail": line.detail} for line in bad]
        nothing = pa.nulls(len(bad))
        columns = [nothing.cast(_VECTOR), nothing.cast(_SCHEMA.field("label").type)]
        columns += [pa.array([file.split] * len(bad)), pa.array(problems, _BAD)]
        yield pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


def _blocks(chunk: _Chunk) -> Iterator[bytes]:
    """The chunk's lines, some whole ones at a time."""
    with open_file(chunk.file.path) as opened:
        stream: IO[bytes] = gzip.GzipFile(fileobj=opened) if chunk.file.is_gzipped else opened  # type: ignore[assignment]
        try:
            stream.seek(chunk.begin - 1)
            # The line that spans the border belongs to the chunk that it begins in.
            at = chunk.begin - 1 + len(stream.readline())
            while at < chunk.end and (block := stream.read(min(_BLOCK_BYTES, chunk.end - at))):
                if not block.endswith(b"\n"):
                    block += stream.readline()
                at += len(block)
                yield block
        except _DAMAGES as error:
            raise DataError(f"{chunk.file.path} cannot be unpacked: {error}; fetch it again") from None


def _to_batch(lines: Lines, file: _File) -> pa.RecordBatch:
    rows = len(lines.offsets) - 1
    offsets = pa.array(lines.offsets.astype(np.int32))
    columns = [
        pa.array(np.zeros(rows, np.int8)),
        pa.array(np.full(rows, file.features, np.int32)),
        pa.ListArray.from_arrays(offsets, pa.array(lines.indices.astype(np.int32))),
        pa.ListArray.from_arrays(offsets, pa.array(lines.values)),
    ]
    labels = pa.ListArray.from_arrays(pa.array(lines.label_offsets.astype(np.int32)), pa.array(lines.labels))
    return pa.RecordBatch.from_arrays(
        [
            pa.StructArray.from_arrays(columns, fields=list(_VECTOR)),
            labels,
            pa.array([file.split] * rows),
            pa.nulls(rows).cast(_BAD),
        ],
        schema=_SCHEMA,
    )
