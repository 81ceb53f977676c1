"""Write row groups: one Parquet file each, in Spark tasks."""

import hashlib
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from sparkdl.data.card import LABEL_COLUMN, METADATA_NAME, File, InputSpec, LabelsFile, SparseCounts
from sparkdl.data.preparing.order import GROUP, PLACE, SPLIT
from sparkdl.data.preparing.petastorm import petastorm_metadata
from sparkdl.data.reading.arrays import decode
from sparkdl.data.reading.read import LENGTH_BYTES, view_inputs, view_labels
from sparkdl.data.sparse_rows import SCHEMA, SPARSE_COUNTS, write_sparse_row_group
from sparkdl.errors import DataError
from sparkdl.storage import join, make_folder, write_file

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Written", "write_row_group", "write_row_groups"]

_RECORD = (
    "split string, group int, rows bigint, bytes bigint, sha256 string, crc32 bigint, inputs_at bigint, "
    "labels_at bigint, unusable bigint, histogram array<bigint>, counts array<bigint>"
)
"""What a task reports about each file it wrote."""
_LEVELS = 256
"""Values of a uint8."""
_PAGE_BYTES = 1 << 30
"""So much that a row group is always one page."""
_ARROW_BYTES = 1 << 26
"""Inputs that Spark hands to a task at a time, beside its own limit on rows: large images would not fit otherwise."""


class Written(NamedTuple):
    """What was written."""

    files: dict[str, tuple[File, ...]]
    """By split, in the order of the rows."""
    metadata: dict[str, str]
    """By split, the SHA-256 of what Petastorm's readers look for."""
    mean: tuple[float, ...] | None
    """Of images: per channel, of value / 255 over the training split."""
    std: tuple[float, ...] | None
    counts: dict[str, SparseCounts]
    """Of sparse rows, by split."""


def write_row_groups(
    rows: "DataFrame", folder: str, input: InputSpec, num_groups: dict[str, int], labels: LabelsFile | None = None
) -> Written:
    """Write every row group to ``folder/<split>/``. Runs on the driver; rows are written by tasks.

    ``rows`` has the input column, the class index, and each row's split, group and place; ``num_groups`` the number of
    row groups by split. Sparse rows have their labels' names instead of a class index, and ``labels`` in ``folder``
    numbers them. Raises :class:`DataError` with the count when preprocessing made values that are not finite.
    """
    spark = rows.sparkSession
    for split in num_groups:
        make_folder(join(folder, split))
    keys = [SPLIT, GROUP]
    records = (
        rows.select(input.column, LABEL_COLUMN, *keys, PLACE)
        .repartition(sum(num_groups.values()), *keys)
        .sortWithinPartitions(*keys, PLACE)
        .mapInArrow(_writer(folder, input, labels), _RECORD)
    )
    with _small_batches(spark, input):
        found = records.collect()
    unusable = sum(row.unusable for row in found)
    if unusable:
        raise DataError(
            f"column {input.column!r} has {unusable:,} rows with values that are NaN or infinite after preprocessing; "
            "add the stage `impute`, or drop these rows"
        )
    files: dict[str, list[File]] = defaultdict(list)
    for row in sorted(found, key=lambda row: (row.split, row.group)):
        name = f"{row.split}/{_file_name(row.group)}"
        facts = {key: row[key] for key in ("rows", "bytes", "sha256", "crc32", "inputs_at", "labels_at")}
        files[row.split].append(File(path=name, **facts))
    mean, std = None, None
    if input.kind == "image":
        histograms = [row.histogram for row in found if row.split == "train"]
        mean, std = _statistics(np.sum(histograms, axis=0).reshape(-1, _LEVELS))
    counts = {}
    if input.kind == "sparse":
        for split in files:
            sums = np.sum([row.counts for row in found if row.split == split], axis=0)
            counts[split] = SparseCounts(**dict(zip(SPARSE_COUNTS, map(int, sums), strict=True)))
    metadata = {split: _write_metadata(join(folder, split), found, input) for split, found in files.items()}
    return Written({split: tuple(found) for split, found in files.items()}, metadata, mean, std, counts)


def _write_metadata(folder: str, files: Sequence[File], input: InputSpec) -> str:
    """Write what stock Petastorm readers look for; returns its SHA-256."""
    content = petastorm_metadata(_schema(input), [file.path.rpartition("/")[2] for file in files])
    write_file(join(folder, METADATA_NAME), content)
    return hashlib.sha256(content).hexdigest()


def _file_name(group: int) -> str:
    return f"part-{group:06d}.parquet"


def _writer(
    folder: str, input: InputSpec, labels: LabelsFile | None
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for split, group, table in _groups(batches):
            path = join(folder, split, _file_name(group))
            if labels is None:
                record = write_row_group(path, table, input)
            else:
                record = write_sparse_row_group(path, table, input, labels, folder)
            yield pa.RecordBatch.from_pylist([{"split": split, "group": group, **record}], schema=_record_schema())

    return write


def _record_schema() -> pa.Schema:
    names = {"string": pa.string(), "int": pa.int32(), "bigint": pa.int64(), "array<bigint>": pa.list_(pa.int64())}
    return pa.schema([(name, names[kind]) for name, kind in (part.split() for part in _RECORD.split(", "))])


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, int, pa.Table]]:
    """Runs of rows of the same split and group; a run may span batches."""
    key: tuple[str, int] | None = None
    pieces: list[pa.RecordBatch] = []
    for batch in batches:
        splits, groups = batch.column(SPLIT), batch.column(GROUP).to_numpy()
        _, codes = np.unique(splits.to_numpy(zero_copy_only=False), return_inverse=True)
        begins = [0, *(np.flatnonzero((np.diff(groups) != 0) | (np.diff(codes) != 0)) + 1), len(groups)]
        for begin, end in pairwise(begins):
            run = (splits[int(begin)].as_py(), int(groups[begin]))
            if key not in (None, run):
                yield *key, pa.Table.from_batches(pieces)  # type: ignore[misc]
                pieces = []
            key = run
            pieces.append(batch.slice(begin, end - begin))
    if key is not None:
        yield *key, pa.Table.from_batches(pieces)


def write_row_group(path: str, table: pa.Table, input: InputSpec) -> dict[str, Any]:
    """Write one row group as one file, and what the card has to know about it. Runs in a task.

    ``table`` has the input column and the class indices; raises :class:`DataError` for rows of the wrong size.
    """
    values = decode(table.column(input.column), input)
    labels = table.column(LABEL_COLUMN).to_numpy()
    schema = _schema(input)
    content = pa.BufferOutputStream()
    with pq.ParquetWriter(
        content,
        schema,
        # Ranks map the files and use the values where they lie; LZ4 would save a third of Fashion-MNIST and quarter the
        # speed.
        compression="NONE",
        use_dictionary=False,
        write_statistics=[LABEL_COLUMN],
        data_page_size=_PAGE_BYTES,
    ) as writer:
        writer.write_table(
            pa.Table.from_arrays([_to_arrow(values, input), pa.array(labels)], schema=schema),
            row_group_size=len(labels),
        )
    written = content.getvalue()
    write_file(path, written, makes_folder=False)  # a task may be told late that nobody wants its rows
    return {
        "rows": len(labels),
        "bytes": written.size,
        "sha256": hashlib.sha256(written).hexdigest(),
        "crc32": zlib.crc32(written),
        "unusable": 0 if input.kind == "image" else int((~np.isfinite(values).all(axis=1)).sum()),
        "histogram": _histogram(values) if input.kind == "image" else None,
        **_find_values(written, values, labels, input),
    }


def _find_values(
    written: pa.Buffer, values: NDArray[np.generic], labels: NDArray[np.int64], input: InputSpec
) -> dict[str, int]:
    """Where in the file the inputs and the labels begin.

    A page holds its levels, then its values (https://parquet.apache.org/docs/file-format/data-pages/). Not compressed,
    PLAIN, and in one page, they end their column, and a reader who knows where they begin has nothing to decode.
    """
    sizes = {"inputs_at": len(values) * (LENGTH_BYTES[input.kind] + input.row_bytes), "labels_at": labels.nbytes}
    columns = pq.read_metadata(pa.BufferReader(written)).row_group(0)
    chunks = [columns.column(index) for index in range(len(sizes))]
    begins = {
        key: chunk.data_page_offset + chunk.total_compressed_size - size
        for chunk, (key, size) in zip(chunks, sizes.items(), strict=True)
    }
    found_values = view_inputs(written, begins["inputs_at"], len(values), input)
    found_labels = view_labels(written, begins["labels_at"], len(labels))
    if found_values.tobytes() != values.tobytes() or found_labels.tobytes() != labels.tobytes():
        raise RuntimeError(f"pyarrow {pa.__version__} lays out pages in a way that sparkdl does not know")
    return begins


def _schema(input: InputSpec) -> pa.Schema:
    if input.kind == "sparse":
        return SCHEMA
    return pa.schema([pa.field(input.column, _arrow_type(input), False), pa.field(LABEL_COLUMN, pa.int64(), False)])


def _arrow_type(input: InputSpec) -> pa.DataType:
    if input.kind == "image":
        return pa.binary()
    return pa.list_(pa.field("element", pa.float32(), nullable=False))


def _to_arrow(values: NDArray[np.generic], input: InputSpec) -> pa.Array:
    width = input.row_bytes if input.kind == "image" else values.shape[1]
    offsets = np.arange(0, (len(values) + 1) * width, width)
    flat = np.ascontiguousarray(values).reshape(-1)
    buffers = [None, pa.py_buffer(offsets.astype(np.int32))]
    if input.kind == "image":
        return pa.Array.from_buffers(_arrow_type(input), len(values), [*buffers, pa.py_buffer(flat)])
    return pa.Array.from_buffers(_arrow_type(input), len(values), buffers, children=[pa.array(flat)])


def _histogram(images: NDArray[np.generic]) -> list[int]:
    """How often each value occurs, channel by channel: exact whatever the order of summing."""
    channels = images.shape[-1]
    return [
        int(count)
        for channel in range(channels)
        for count in np.bincount(images[..., channel].reshape(-1), minlength=_LEVELS)
    ]


def _statistics(histograms: NDArray[np.int64]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    levels = np.arange(_LEVELS) / (_LEVELS - 1)
    shares = histograms / histograms.sum(axis=1, keepdims=True)
    mean = shares @ levels
    std = np.sqrt(((levels - mean[:, None]) ** 2 * shares).sum(axis=1))
    return tuple(map(float, mean)), tuple(map(float, std))


@contextmanager
def _small_batches(spark: "SparkSession", input: InputSpec) -> Iterator[None]:
    if input.kind == "sparse":  # its rows are small whatever their width
        yield
        return
    key = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(key) or "0"
    spark.conf.set(key, min(int(before) or _ARROW_BYTES, max(_ARROW_BYTES // input.row_bytes, 1)))
    try:
        yield
    finally:
        spark.conf.set(key, before)
