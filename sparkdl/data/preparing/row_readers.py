"""How tasks get raw columns: from Spark's rows, or from Parquet files that they read themselves.

Spark reads a column for its own rows first and then makes an Arrow column of it, which costs three times what the rest
of a look at a row does. Files of plain columns need none of that. Both give the same values.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from sparkdl.data.in_place.file_paths import file_paths
from sparkdl.data.label_types import arrow_type
from sparkdl.data.sql import by_place
from sparkdl.errors import StorageError
from sparkdl.sessions import default_parallelism
from sparkdl.settings import Source
from sparkdl.storage import file_size, join, local_path, open_file

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

__all__ = ["FileReader", "OverBatches", "RowReader", "SparkReader", "file_reader"]

OverBatches = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
_PLAIN = {
    name: arrow_type(name) for name in ("boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string")
}
"""Types that Parquet has as Arrow has them, whoever wrote the file; times and decimals it has in several ways."""
_MOST_FILES = 100_000
"""The driver knows each row group, of which a file has a few."""
_TASKS_A_SLOT = 4
_TASK_ROWS = 1 << 22
"""About the most rows of a task, whose hashes it may have in memory at once."""
_BATCH_ROWS = 1 << 14
_BATCH_VALUES = 1 << 23
_BUFFER_BYTES = 1 << 20
"""Read at a time of a column."""


class RowReader(Protocol):
    """Gives tasks some columns of all raw rows."""

    @property
    def schema(self) -> "StructType":
        """Of the raw rows."""

    def map(self, columns: Sequence[str], work: OverBatches, schema: Any) -> "DataFrame":
        """What ``work`` makes, in tasks, of batches of these columns, in this order. Runs on the driver, lazily."""


class SparkReader(NamedTuple):
    """Rows that Spark reads."""

    rows: "DataFrame"

    @property
    def schema(self) -> "StructType":
        """As :attr:`RowReader.schema`."""
        return self.rows.schema

    def map(self, columns: Sequence[str], work: OverBatches, schema: Any) -> "DataFrame":
        """As :meth:`RowReader.map`."""
        return by_place(self.rows, columns).mapInArrow(work, schema)


class _Group(NamedTuple):
    path: str
    number: int
    rows: int


class FileReader(NamedTuple):
    """Rows of Parquet files that tasks read, row group by row group, a batch at a time."""

    rows: "DataFrame"
    """The same rows as Spark sees them."""
    dealt: list[list[_Group]]
    """The row groups of each task."""

    @property
    def schema(self) -> "StructType":
        """As :attr:`RowReader.schema`."""
        return self.rows.schema

    def map(self, columns: Sequence[str], work: OverBatches, schema: Any) -> "DataFrame":
        """As :meth:`RowReader.map`."""
        read = self.reading(columns)
        return self.map_tasks(lambda tasks: work(batch for task in tasks for batch in read(task)), schema)

    def map_tasks(self, work: Callable[[Iterable[int]], Iterator[pa.RecordBatch]], schema: str) -> "DataFrame":
        """What ``work`` makes of the number of each task, in that task. Runs on the driver, lazily."""

        def numbered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return work([task for batch in batches for task in batch.column(0).to_pylist()])

        tasks = len(self.dealt)
        return self.rows.sparkSession.range(tasks, numPartitions=tasks).mapInArrow(numbered, schema)

    def reading(self, columns: Sequence[str]) -> Callable[[int], Iterator[pa.RecordBatch]]:
        """What gives the rows of a task by its number: each time the same batches, in the same order."""
        dealt, names = self.dealt, list(columns)
        return lambda task: (batch for group in dealt[task] for batch in _batches(group, names))


def file_reader(source: Source, rows: "DataFrame", columns: Sequence[str]) -> FileReader | None:
    """What reads these columns of a source's Parquet files; None where Spark alone does. Runs on the driver.

    ``rows`` are the source as Spark opens it. Tasks look at all footers: each file must have the columns, in the types
    that Spark has found.
    """
    kinds = {field.name: _PLAIN.get(field.dataType.simpleString()) for field in rows.schema}
    wanted = {name: kinds.get(name) for name in columns}
    if source.format != "parquet" or source.options or None in wanted.values() or len(kinds) < len(rows.columns):
        return None
    try:
        folder, names = file_paths(rows.inputFiles())
        paths = [join(folder, name) for name in names]
        if not 0 < len(paths) < _MOST_FILES or file_size(paths[0]) is None:
            return None
    except (OSError, StorageError):  # of storage that Spark may reach all the same
        return None
    spark = rows.sparkSession
    slots = default_parallelism(spark)
    files = spark.range(len(paths), numPartitions=min(len(paths), slots))
    found = files.mapInArrow(_footers(paths, wanted), "file int, number int, rows bigint").collect()
    if not found or any(row.number < 0 for row in found):
        return None
    groups = sorted((_Group(paths[row.file], row.number, row.rows) for row in found), key=lambda group: -group.rows)
    rows_of_tasks = -(-sum(group.rows for group in groups) // _TASK_ROWS)
    tasks = min(len(groups), max(_TASKS_A_SLOT * slots, rows_of_tasks))
    return FileReader(rows, [groups[task::tasks] for task in range(tasks)])


def _footers(paths: Sequence[str], wanted: Mapping[str, pa.DataType | None]) -> OverBatches:
    """Finds the row groups of files; -1 as a number stands for a file with other columns."""

    def footers(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for file in batch.column(0).to_pylist():
                rows = _rows_of_groups(paths[file], wanted)
                numbers = [-1] if rows is None else list(range(len(rows)))
                columns = [[file] * len(numbers), numbers, [0] if rows is None else rows]
                kinds = [pa.int32(), pa.int32(), pa.int64()]
                arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
                yield pa.RecordBatch.from_arrays(arrays, ["file", "number", "rows"])

    return footers


def _rows_of_groups(path: str, wanted: Mapping[str, pa.DataType | None]) -> list[int] | None:
    """How many rows each row group of a file has; None where its columns are others, or cannot be read like this."""
    try:
        with open_file(path) as stream:
            footer = pq.read_metadata(stream)
    except (pa.ArrowException, OSError):
        return None
    schema = footer.schema.to_arrow_schema()
    found = dict(zip(schema.names, schema.types, strict=True))
    if any(found.get(name) != kind for name, kind in wanted.items()):
        return None
    return [footer.row_group(number).num_rows for number in range(footer.num_row_groups)]


def _batches(group: _Group, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The columns of a row group, some rows at a time."""
    local = local_path(group.path)
    if local:
        opened = pq.ParquetFile(str(local), memory_map=True)
    else:
        opened = pq.ParquetFile(open_file(group.path), buffer_size=_BUFFER_BYTES)
    with opened as file:
        rows = max(min(_BATCH_ROWS, _BATCH_VALUES // len(columns)), 1)
        for batch in file.iter_batches(rows, row_groups=[group.number], columns=[*columns], use_threads=False):
            yield batch.select([*columns])
