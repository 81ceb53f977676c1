"""Write row groups: one Parquet file each, in Spark tasks."""

import hashlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkdl.data.card import (
    LABEL_COLUMN,
    METADATA_NAME,
    WEIGHT_COLUMN,
    File,
    InputSpec,
    LabelScale,
    LabelsFile,
    LabelSpec,
    SparseCounts,
)
from sparkdl.data.preparing.order import GROUP, PLACE, SPLIT
from sparkdl.data.preparing.petastorm import petastorm_metadata
from sparkdl.data.preparing.row_group import LEVELS, row_schema, write_row_group
from sparkdl.data.sparse_rows import SPARSE_COUNTS, sparse_schema, write_sparse_row_group
from sparkdl.errors import DataError
from sparkdl.storage import join, make_folder, write_file

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Layout", "Written", "write_row_groups"]

_RECORD = (
    "split string, group int, rows bigint, bytes bigint, sha256 string, crc32 bigint, inputs_at bigint, "
    "labels_at bigint, weights_at bigint, unusable bigint, histogram array<bigint>, counts array<bigint>, "
    "label_mean double, label_deviations double, weight_sum double"
)
"""What a task reports about each file it wrote."""
_FACTS = "rows", "bytes", "sha256", "crc32", "inputs_at", "labels_at", "weights_at"
"""What of it the card says of the file."""
_ARROW_BYTES = 1 << 26
"""Inputs that Spark hands to a task at a time, beside its own limit on rows: large images would not fit otherwise."""


class Layout(NamedTuple):
    """What a row consists of."""

    input: InputSpec
    label: LabelSpec
    label_names: tuple[str, ...] = ()
    """By class index; empty where labels are numbers, or their names are in a file."""
    labels: LabelsFile | None = None
    """That file, where there are very many classes."""
    weighted: bool = False
    row_bytes: int = 1
    """About what the features of a row take in Spark, at most."""
    queries: bool = False
    """Whether a row is a group of rows that is ranked within: its features and its labels are arrays of theirs."""

    @property
    def in_lists(self) -> bool:
        """As :attr:`Card.in_lists`."""
        return self.input.kind == "sparse" or self.queries


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
    label_scale: LabelScale | None
    """Of labels that are numbers."""
    mean_weight: float | None
    """Of rows that have weights: over the training split."""
    unusable: int
    """Rows with values that are NaN or infinite, as preprocessing may have made them."""


def write_row_groups(rows: "DataFrame", folder: str, layout: Layout, num_groups: dict[str, int]) -> Written:
    """Write every row group to ``folder/<split>/``. Runs on the driver; rows are written by tasks.

    ``rows`` has the input column, the label, its weight where rows have such, and each row's split, group and place;
    ``num_groups`` the number of row groups by split. A label is a class index or a number. Rows with several labels
    have their names, which ``layout.label_names`` or the file ``layout.labels`` in ``folder`` number.
    """
    spark, input = rows.sparkSession, layout.input
    for split in num_groups:
        make_folder(join(folder, split))
    keys = [SPLIT, GROUP]
    records = (
        rows.select(input.column, LABEL_COLUMN, *([WEIGHT_COLUMN] if layout.weighted else []), *keys, PLACE)
        .repartition(sum(num_groups.values()), *keys)
        .sortWithinPartitions(*keys, PLACE)
        .mapInArrow(_writer(folder, layout), _RECORD)
    )
    with _small_batches(spark, layout.row_bytes):
        found = records.collect()
    files: dict[str, list[File]] = defaultdict(list)
    for row in sorted(found, key=lambda row: (row.split, row.group)):
        name = f"{row.split}/{_file_name(row.group)}"
        facts = {key: row[key] for key in _FACTS}
        files[row.split].append(File(path=name, **facts))
    mean, std = None, None
    if input.kind == "image":
        histograms = [row.histogram for row in found if row.split == "train"]
        mean, std = _statistics(np.sum(histograms, axis=0).reshape(-1, LEVELS))
    counts = {}
    if layout.in_lists:
        for split in files:
            sums = np.sum([row.counts for row in found if row.split == split], axis=0)
            counts[split] = SparseCounts(**dict(zip(SPARSE_COUNTS, map(int, sums), strict=True)))
    metadata = {split: _write_metadata(join(folder, split), found, layout) for split, found in files.items()}
    training = [row for row in sorted(found, key=lambda row: row.group) if row.split == "train"]
    return Written(
        files={split: tuple(found) for split, found in files.items()},
        metadata=metadata,
        mean=mean,
        std=std,
        counts=counts,
        label_scale=_label_scale(training) if training[0].label_mean is not None else None,
        mean_weight=_mean_weights(found)["train"] if layout.weighted else None,
        unusable=sum(row.unusable for row in found),
    )


def _label_scale(files: Sequence[Any]) -> LabelScale:
    """Mean and deviation of all labels from those of each file (Chan, Golub, LeVeque, 1983), whatever their order."""
    rows = sum(file.rows for file in files)
    mean = math.fsum(file.rows * file.label_mean for file in files) / rows
    within = math.fsum(file.label_deviations for file in files)
    between = math.fsum(file.rows * (file.label_mean - mean) ** 2 for file in files)
    return LabelScale(mean=mean, std=math.sqrt((within + between) / rows) or 1.0)


def _mean_weights(files: Sequence[Any]) -> dict[str, float]:
    """By split. Raises :class:`DataError` for one that counts for nothing."""
    means: dict[str, float] = {}
    for split in sorted({file.split for file in files}):
        alike = [file for file in files if file.split == split]
        means[split] = math.fsum(file.weight_sum for file in alike) / sum(file.rows for file in alike)
        if not means[split]:
            raise DataError(f"all rows of the split {split!r} have the weight 0; nothing can be found from them")
    return means


def _write_metadata(folder: str, files: Sequence[File], layout: Layout) -> str:
    """Write what stock Petastorm readers look for; returns its SHA-256."""
    schema = (
        sparse_schema(layout.weighted)
        if layout.in_lists
        else row_schema(layout.input, layout.label, weighted=layout.weighted)
    )
    content = petastorm_metadata(schema, [file.path.rpartition("/")[2] for file in files])
    write_file(join(folder, METADATA_NAME), content)
    return hashlib.sha256(content).hexdigest()


def _file_name(group: int) -> str:
    return f"part-{group:06d}.parquet"


def _writer(folder: str, layout: Layout) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for split, group, table in _groups(batches):
            path = join(folder, split, _file_name(group))
            if layout.in_lists:
                record = write_sparse_row_group(path, table, layout.input, layout.labels, folder)
            else:
                record = write_row_group(path, table, layout.input, layout.label_names)
            found = {"split": split, "group": group, **record, **_sums(table)}
            yield pa.RecordBatch.from_pylist([found], schema=_record_schema())

    return write


def _record_schema() -> pa.Schema:
    names = {"string": pa.string(), "int": pa.int32(), "bigint": pa.int64(), "double": pa.float64()}
    names["array<bigint>"] = pa.list_(pa.int64())
    return pa.schema([(name, names[kind]) for name, kind in (part.split() for part in _RECORD.split(", "))])


def _sums(table: pa.Table) -> dict[str, float]:
    """What the scale of labels and the mean weight are made from: exact sums, whatever adds up how many at a time."""
    sums: dict[str, float] = {}
    if pa.types.is_float64(table.schema.field(LABEL_COLUMN).type):
        labels = table.column(LABEL_COLUMN).to_numpy()
        mean = math.fsum(labels) / len(labels)
        sums |= {"label_mean": mean, "label_deviations": math.fsum((labels - mean) ** 2)}
    if WEIGHT_COLUMN in table.column_names:
        sums["weight_sum"] = math.fsum(table.column(WEIGHT_COLUMN).to_numpy())
    return sums


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, int, pa.Table]]:
    """Runs of rows of the same split and group; a run may span batches."""
    key: tuple[str, int] | None = None
    pieces: list[pa.RecordBatch] = []
    for batch in filter(len, batches):  # an empty partition may come as an empty batch
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


def _statistics(histograms: NDArray[np.int64]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    levels = np.arange(LEVELS) / (LEVELS - 1)
    shares = histograms / histograms.sum(axis=1, keepdims=True)
    mean = shares @ levels
    std = np.sqrt(((levels - mean[:, None]) ** 2 * shares).sum(axis=1))
    return tuple(map(float, mean)), tuple(map(float, std))


@contextmanager
def _small_batches(spark: "SparkSession", row_bytes: int) -> Iterator[None]:
    key = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(key)
    limit = int(before or 0)
    largest = max(_ARROW_BYTES // row_bytes, 1)
    spark.conf.set(key, min(limit, largest) if limit > 0 else largest)  # to Spark, 0 and less is no limit
    try:
        yield
    finally:
        spark.conf.unset(key) if before is None else spark.conf.set(key, before)
