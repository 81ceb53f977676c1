"""Finds the Parquet files of a source, their row groups, and the rows with their positions in the files."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from sparkdl.data.card_parts import InPlace
from sparkdl.data.in_place.drawing import rows_of, split_names
from sparkdl.data.in_place.examples import one_array
from sparkdl.data.in_place.file_paths import file_paths
from sparkdl.data.in_place.parquet_columns import decode_columns, read_footer, span_of
from sparkdl.data.job_errors import own_errors
from sparkdl.data.preparing.row_readers import OverBatches
from sparkdl.data.raw_columns import listed, select_columns
from sparkdl.data.row_groups import ForeignRowGroup
from sparkdl.data.sources.open import open_source
from sparkdl.errors import DataError
from sparkdl.preprocessing.raw_rows import fitted_rows
from sparkdl.sessions import default_parallelism
from sparkdl.settings import Prepare, Source
from sparkdl.storage import file_size, join, read_file

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["GROUPS", "LARGEST_GROUP_BYTES", "NEEDS_COPY", "FoundGroup", "FoundRows", "find_rows", "groups_in"]

LARGEST_GROUP_BYTES = 1 << 29
"""The largest size of a row group's columns after decompression: a rank holds several in memory."""
NEEDS_COPY = "prepare a copy (`prepare.in_place: false`)"
"""The remedy in errors."""
_NUMBERS = {"boolean", "tinyint", "smallint", "int", "bigint", "float", "double"}
_PLACES_A_FILE = 1 << 20
"""More than the row groups of a file: a row group's place is its file's number times this, plus its own number."""
_BATCH_ROWS = 1 << 14
GROUPS = "file int, number int, place bigint, first bigint, rows bigint, begin bigint, end bigint, bytes bigint"
"""The columns that tasks return for each row group; ``first`` is the number of its first row in the file."""
_GROUPS_HERE = pa.schema(
    [(name, {"int": pa.int32(), "bigint": pa.int64()}[kind]) for name, kind in map(str.split, GROUPS.split(", "))]
)


class FoundGroup(NamedTuple):
    """A row group, with the columns of :data:`GROUPS`."""

    file: int
    number: int
    place: int
    first: int
    rows: int
    begin: int
    end: int
    bytes: int

    def at(self, path: str) -> ForeignRowGroup:
        """The row group with its file's path; its hashes and splits are not known yet."""
        numbers = {name: getattr(self, name) for name in ("rows", "bytes", "begin", "end", "number", "place")}
        return ForeignRowGroup(path=path, sha256="", crc32=0, **numbers)


class FoundRows(NamedTuple):
    """The rows of existing files, before they have been examined."""

    folder: str
    """The common folder of all files."""
    paths: tuple[str, ...]
    """The paths of the files, relative to the folder, in the order of their names."""
    groups: "DataFrame"
    """The row groups of all files, with the columns of :data:`GROUPS`, spread over tasks."""
    rows: "DataFrame"
    """The columns that are needed, and each row's file, its number in the file, and its split."""
    settings: Prepare
    looked_at_by: Prepare
    """The settings for examining these rows: features are listed, and the split is a column."""
    reader: Callable[[Sequence[str]], OverBatches]
    """Makes the function by which a task reads columns of row groups."""

    @property
    def schema(self) -> "StructType":
        """The schema of the rows; see :class:`~sparkdl.data.preparing.row_readers.RowReader`."""
        return self.rows.schema

    def map(self, columns: Sequence[str], work: OverBatches, schema: Any) -> "DataFrame":
        """Apply ``work`` to batches of these columns, in the tasks that read the files. Lazy."""
        read = self.reader(columns)
        return self.groups.mapInArrow(lambda batches: work(read(batches)), schema)

    @property
    def described(self) -> InPlace:
        """The entry for the card."""
        return InPlace(
            folder=self.folder,
            label=self.settings.label,
            weight=self.settings.weight,
            seed=self.settings.seed,
            fractions=self.settings.split.fractions,
        )


def find_rows(source: Source, settings: Prepare, spark: "SparkSession | None") -> FoundRows:
    """The row groups of a source whose rows stay in place. Runs on the driver; tasks read footers.

    Raises :class:`DataError` for a source that does not consist of Parquet files, for columns that are not in all of
    them or whose type needs a copy, and for row groups that are too large for a rank's memory.
    """
    from pyspark.sql import SparkSession

    session = spark or SparkSession.builder.getOrCreate()
    with own_errors(source.place):
        return _found_rows(open_source(source, session), source, settings)


def _found_rows(table: "DataFrame", source: Source, settings: Prepare) -> FoundRows:
    spark = table.sparkSession
    needed = _needed(table, settings)
    folder, paths = file_paths(table.inputFiles())
    if not paths:
        raise DataError(f"Spark does not report the files of {source.place}; {NEEDS_COPY}")
    kinds = {field.name: field.dataType.simpleString() for field in select_columns(table, needed).schema}
    _check_types(kinds, settings)
    tasks = default_parallelism(spark)
    numbers = spark.range(len(paths), numPartitions=min(len(paths), 4 * tasks))
    groups = numbers.mapInArrow(_footers(folder, paths, list(kinds)), GROUPS)
    found, counted = groups.selectExpr("count(*) groups", "sum(rows) rows").collect()[0], table.count()
    if found.rows != counted:
        raise DataError(
            f"the files of {source.place} hold {found.rows or 0:,} rows, but the table has {counted:,}: the others are"
            f" marked as deleted. Rewrite the table without them, or {NEEDS_COPY}"
        )
    groups = groups.repartition(min(found.groups, 4 * tasks), "place")
    file, row, split = (_free(name, kinds) for name in ("file", "row", "split"))
    looked_at_by = settings.model_copy(
        update={
            "features": [name for name in needed if name not in settings.keys],
            "split": {"column": split, "fractions": {}},
            "in_place": False,
        }
    )
    read = partial(_reader, folder, paths, kinds, (file, row, split), settings)
    schema = ", ".join([f"`{file}` string", f"`{row}` bigint", f"`{split}` string"])
    columns = ", ".join(f"`{name.replace('`', '``')}` {kind}" for name, kind in kinds.items())
    rows = groups.mapInArrow(read([file, row, split, *kinds]), f"{schema}, {columns}")
    return FoundRows(folder, paths, groups, rows, settings, looked_at_by, read)


def groups_in(batches: Iterable[pa.RecordBatch]) -> Iterator[FoundGroup]:
    """The row groups in a task's input."""
    for batch in batches:
        for row in batch.to_pylist():
            yield FoundGroup(**row)


def _needed(table: "DataFrame", settings: Prepare) -> list[str]:
    features = settings.features or [name for name in table.columns if name not in settings.keys]
    return list(dict.fromkeys([*features, *settings.keys]))


def _check_types(kinds: Mapping[str, str], settings: Prepare) -> None:
    """Raise :class:`DataError` for columns whose types need a copy."""
    features = {name: kind for name, kind in kinds.items() if name not in settings.keys}
    for name, kind in features.items():
        element = kind.removeprefix("array<").removesuffix(">")
        if element not in _NUMBERS and not kind.startswith(("string", "date", "timestamp", "decimal")):
            raise DataError(
                f"column {name!r} is {kind}, but features of rows that stay in place must be numbers, arrays of them,"
                f" texts or times: {NEEDS_COPY}, or leave the column out"
            )
    if kinds[settings.label].startswith("array"):
        raise DataError(
            f"the label column {settings.label!r} is {kinds[settings.label]}, but a row that stays in place must have a"
            f" single label; {NEEDS_COPY}"
        )


def _free(name: str, taken: Collection[str]) -> str:
    """A name that no column has."""
    lowered = {each.lower() for each in taken}
    while name in lowered:
        name += "_"
    return name


def _footers(
    folder: str, paths: Sequence[str], columns: Sequence[str]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def footers(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from _footer(number, join(folder, paths[number]), columns, join(folder, paths[0]))

    return footers


def _footer(file: int, path: str, columns: Sequence[str], first_path: str) -> Iterator[pa.RecordBatch]:
    """The row groups of a file that have rows."""
    size = file_size(path)
    if size is None:
        raise DataError(f"{path} is missing")
    if not path.endswith(".parquet") and read_file(path, start=0, end=4) != b"PAR1":
        raise DataError(f"{path} is not a Parquet file; {NEEDS_COPY}")
    footer = read_footer(path, size)
    kinds, firsts = (
        {column.name: column.type for column in each.schema.to_arrow_schema()}
        for each in (footer, read_footer(first_path, int(file_size(first_path) or 0)))
    )
    if missing := [name for name in columns if name not in kinds]:
        raise DataError(
            f"{path} has no column {missing[0]!r}, it has {listed([*kinds])}; if the column is in the names of folders,"
            f" or only in other files, {NEEDS_COPY}, or leave the column out"
        )
    for name in columns:
        if kinds[name] != firsts.get(name):
            raise DataError(
                f"column {name!r} is {kinds[name]} in {path} and {firsts.get(name)} in {first_path}; {NEEDS_COPY},"
                " which has one type"
            )
    before, found = 0, []
    for number in range(footer.num_row_groups):
        rows = footer.row_group(number).num_rows
        if rows:
            begin, end, decompressed = span_of(footer, number, columns)
            if decompressed > LARGEST_GROUP_BYTES:
                raise DataError(
                    f"row group {number} of {path} takes {decompressed >> 20:,} MiB, more than the"
                    f" {LARGEST_GROUP_BYTES >> 20} that ranks can read at a time; {NEEDS_COPY}"
                )
            place = file * _PLACES_A_FILE + number
            found.append(FoundGroup(file, number, place, before, rows, begin, end, size)._asdict())
        before += rows
    yield pa.RecordBatch.from_pylist(found, schema=_GROUPS_HERE)


def _reader(
    folder: str,
    paths: Sequence[str],
    kinds: Mapping[str, str],
    places: tuple[str, str, str],
    settings: Prepare,
    columns: Sequence[str],
) -> OverBatches:
    """Reads columns of row groups, including those with a row's position."""
    fractions, seed = dict(settings.split.fractions), settings.seed
    file, row, split = places
    stored = [name for name in columns if name in kinds]

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for group in groups_in(batches):
            table = decode_columns(group.at(join(folder, paths[group.file])), columns=stored)
            made = {name: fitted_rows(one_array(table, name), name, kinds[name])[0] for name in stored}
            if file in columns:
                made[file] = pa.array([paths[group.file]]).take(pa.array(np.zeros(group.rows, np.int32)))
                made[row] = pa.array(np.arange(group.first, group.first + group.rows))
            splits = np.empty(group.rows, object)
            for name in split_names(fractions):
                splits[rows_of(name, group.place, group.rows, fractions=fractions, seed=seed)] = name
            made[split] = pa.array(splits, pa.string())
            read_columns = pa.Table.from_arrays([made[name] for name in columns], [*columns])
            yield from read_columns.to_batches(max_chunksize=_BATCH_ROWS)

    return read
