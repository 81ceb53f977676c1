"""Write row groups: one Parquet file each, in Spark tasks."""

import hashlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
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
from sparkdl.data.preparing.blocks import BLOCKS, KEY, keys_for, num_tasks, opened, packed, rows_of_block, small_batches
from sparkdl.data.preparing.order import CONTENT_HASH, ORDER, SPLIT
from sparkdl.data.preparing.petastorm import petastorm_metadata
from sparkdl.data.preparing.row_group import LEVELS, row_schema, write_row_group
from sparkdl.data.preparing.runs import GroupRun, Runs
from sparkdl.data.preparing.stacking import unstacked
from sparkdl.data.sparse_rows import SPARSE_COUNTS, sparse_schema, write_sparse_row_group
from sparkdl.errors import DataError
from sparkdl.storage import join, make_folder, write_file

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Layout", "Written", "write_row_groups"]

_RECORD = (
    "split string, group int, rows bigint, bytes bigint, sha256 string, crc32 bigint, inputs_at bigint, "
    "labels_at bigint, weights_at bigint, unusable bigint, histogram array<bigint>, counts array<bigint>, "
    "label_mean double, label_deviations double, weight_sum double"
)
"""What a task reports about each file it wrote."""
_FACTS = "rows", "bytes", "sha256", "crc32", "inputs_at", "labels_at", "weights_at"
"""What of it the card says of the file."""


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


def write_row_groups(rows: "DataFrame", folder: str, layout: Layout, runs: Runs) -> Written:
    """Write every row group to ``folder/<split>/``. Runs on the driver; rows are dealt and written by tasks.

    ``rows`` has the input column, the label, its weight where rows have such, and each row's split and hashes; ``runs``
    says which rows a row group holds. A label is a number, or the name of a class among ``layout.label_names``. Rows
    with several labels have their names, which these or the file ``layout.labels`` in ``folder`` number.
    """
    input = layout.input
    for split in runs.firsts:
        make_folder(join(folder, split))
    stored = [input.column, LABEL_COLUMN, *([WEIGHT_COLUMN] if layout.weighted else [])]
    tasks = num_tasks(len(runs.all), layout.row_bytes * sum(run.sent for run in runs.all))
    keys = keys_for(len(runs.all), tasks)
    with small_batches(rows.sparkSession, layout.row_bytes) as batch_rows:
        block_rows = rows_of_block(batch_rows, layout.row_bytes)
        dealt = rows.select(*stored, ORDER, CONTENT_HASH, SPLIT).mapInArrow(_dealer(runs, keys, block_rows), BLOCKS)
        found = dealt.repartition(tasks, KEY).mapInArrow(_writer(folder, layout, runs), _RECORD).collect()
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


def _dealer(
    runs: Runs, keys: NDArray[np.int32], block_rows: int
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Sends each row to its row group, or to the two that it may be in."""

    def dealt(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[NDArray[np.int64], pa.RecordBatch]]:
        for batch in filter(len, batches):  # an empty partition may come as an empty batch
            taken, groups = runs.dealt(batch.column(SPLIT), batch.column(ORDER).to_numpy())
            yield groups, batch.select([name for name in batch.schema.names if name != SPLIT]).take(taken)

    return lambda batches: packed(dealt(batches), keys, block_rows=block_rows)


def _writer(folder: str, layout: Layout, runs: Runs) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    input = layout.input

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for place, sent in opened(batches):
            run = runs.all[place]
            split, group = run.split, run.number
            table = unstacked(_numbered(_in_order(sent, run), layout.label_names), input)
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


def _in_order(sent: pa.Table, run: GroupRun) -> pa.Table:
    """The rows of a row group, of those that were sent to it. Raises :class:`DataError` if these are not all of them.

    Rows of one order differ in content: those that are equal are numbered, and ordered by their numbers.
    """
    if len(sent) != run.sent:
        raise DataError(
            f"the rows changed while they were read (a part of split {run.split!r} had {run.sent:,}, then"
            f" {len(sent):,}); prepare from a source that gives the same rows each time"
        )
    order = np.lexsort((sent.column(CONTENT_HASH).to_numpy(), sent.column(ORDER).to_numpy()))
    return sent.drop_columns([ORDER, CONTENT_HASH]).take(order[run.skipped : run.skipped + run.rows]).combine_chunks()


def _numbered(rows: pa.Table, label_names: Sequence[str]) -> pa.Table:
    """The rows with the index of each one's class in place of its name."""
    place = rows.schema.get_field_index(LABEL_COLUMN)
    if not pa.types.is_string(rows.schema.field(place).type):
        return rows
    classes = pc.index_in(rows.column(place), value_set=pa.array(label_names, pa.string())).cast(pa.int64())
    return rows.set_column(place, LABEL_COLUMN, classes)


def _statistics(histograms: NDArray[np.int64]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    levels = np.arange(LEVELS) / (LEVELS - 1)
    shares = histograms / histograms.sum(axis=1, keepdims=True)
    mean = shares @ levels
    std = np.sqrt(((levels - mean[:, None]) ** 2 * shares).sum(axis=1))
    return tuple(map(float, mean)), tuple(map(float, std))
