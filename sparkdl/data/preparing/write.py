"""Write row groups: one Parquet file each, in Spark tasks."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkdl.data.card import LABEL_COLUMN, WEIGHT_COLUMN, InputSpec
from sparkdl.data.card_parts import LabelsFile
from sparkdl.data.class_indices import class_indices
from sparkdl.data.label_spec import LabelSpec
from sparkdl.data.named_files import named_schema, write_named_row_group
from sparkdl.data.preparing.blocks import BLOCKS, KEY, keys_for, num_tasks, opened, packed, rows_of_block, small_batches
from sparkdl.data.preparing.order import CONTENT_HASH, ORDER, SPLIT
from sparkdl.data.preparing.row_group import row_schema, write_row_group
from sparkdl.data.preparing.rows_to_write import RowsToWrite
from sparkdl.data.preparing.runs import GroupRun, Runs
from sparkdl.data.preparing.transform import from_bytes
from sparkdl.data.preparing.written import RECORD, Written, summed_up, sums_of, to_batch
from sparkdl.data.row_groups import file_name
from sparkdl.data.sparse_rows import sparse_schema, write_sparse_row_group
from sparkdl.errors import DataError
from sparkdl.storage import join, make_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Layout", "write_row_groups"]


class Layout(NamedTuple):
    """What a row consists of."""

    inputs: InputSpec | dict[str, InputSpec]
    """The only input, or several by name, which lie in the fields of ``column``."""
    column: str
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
        return self.queries or (isinstance(self.inputs, InputSpec) and self.inputs.kind == "sparse")

    @property
    def schema(self) -> pa.Schema:
        """The columns of a file."""
        if self.in_lists:
            return sparse_schema(self.weighted)
        if isinstance(self.inputs, InputSpec):
            return row_schema(self.inputs, self.label, weighted=self.weighted)
        return named_schema(self.inputs, self.label, weighted=self.weighted)


def write_row_groups(spark: "SparkSession", rows: RowsToWrite, folder: str, layout: Layout, runs: Runs) -> Written:
    """Write every row group to ``folder/<split>/``. Runs on the driver; rows are dealt and written by tasks.

    ``rows`` have the input column, the label, its weight where rows have such, and each row's split and hashes;
    ``runs`` says which rows a row group holds. A label is a number, or the name of a class among
    ``layout.label_names``. Rows with several labels have their names, which these or the file ``layout.labels`` in
    ``folder`` number.
    """
    for split in runs.splits:
        make_folder(join(folder, split))
    stored = [layout.column, LABEL_COLUMN, *([WEIGHT_COLUMN] if layout.weighted else [])]
    tasks = num_tasks(runs.num_groups, layout.row_bytes * runs.sent)
    keys = keys_for(runs.num_groups, tasks)
    with small_batches(spark, max(layout.row_bytes, rows.value_bytes)) as batch_rows:
        block_rows = rows_of_block(batch_rows, layout.row_bytes)
        dealt = rows.map([*stored, ORDER, CONTENT_HASH, SPLIT], _dealer(runs, keys, block_rows), BLOCKS)
        records = dealt.repartition(tasks, KEY).mapInArrow(_writer(folder, layout, runs), RECORD)
        return summed_up(records, folder, layout.schema, runs)


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
    input = layout.inputs

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        records = []
        for place, sent, own in opened(batches):
            run = runs.group(place)
            split, group = run.split, run.number
            table = _numbered(_in_order(sent, own, run), layout.label_names)
            path = join(folder, split, file_name(group))
            if not isinstance(input, InputSpec):
                record = write_named_row_group(
                    path, table, layout.column, input, layout.label_names, has_labels=layout.label.stored
                )
            elif layout.in_lists:
                record = write_sparse_row_group(path, from_bytes(table, input), input, layout.labels, folder)
            else:
                record = write_row_group(path, from_bytes(table, input), input, layout.label_names)
            records.append({"split": split, "group": group, **record, **sums_of(table)})
        if records:
            yield to_batch(records)

    return write


def _in_order(sent: pa.Table, own: NDArray[np.int64], run: GroupRun) -> pa.Table:
    """The rows of a row group, of those that were sent to it. Raises :class:`DataError` if these are not all of them.

    Rows of one order differ in content: those that are equal are numbered, and ordered by their numbers.
    """
    if len(own) != run.sent:
        raise DataError(
            f"the rows changed while they were read (a part of split {run.split!r} had {run.sent:,}, then"
            f" {len(own):,}); prepare from a source that gives the same rows each time"
        )
    order = np.lexsort((sent.column(CONTENT_HASH).to_numpy()[own], sent.column(ORDER).to_numpy()[own]))
    wanted = own[order[run.skipped : run.skipped + run.rows]]
    return sent.drop_columns([ORDER, CONTENT_HASH]).take(wanted).combine_chunks()


def _numbered(rows: pa.Table, label_names: Sequence[str]) -> pa.Table:
    """The rows with the index of each one's class in place of its name."""
    place = rows.schema.get_field_index(LABEL_COLUMN)
    if not pa.types.is_string(rows.schema.field(place).type):
        return rows
    return rows.set_column(place, LABEL_COLUMN, class_indices(rows.column(place), label_names))
