"""Batches and blocks of rows for tasks, of sizes that fit into memory.

For a shuffle, rows are packed into blocks, so that Spark moves a few large values instead of single rows.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkdl.data.working_columns import WORKING
from sparkdl.preprocessing.hashes import murmur3_of_ints

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "BLOCKS",
    "KEY",
    "RAW_BYTES",
    "keys_for",
    "num_tasks",
    "opened",
    "packed",
    "rows_of_block",
    "small_batches",
    "to_message",
]

KEY = "key"
BLOCKS = f"{KEY} int, block binary"
"""The columns of blocks in Spark: the key by which Spark finds the destination task of a block's rows, and an Arrow
message with these rows, in the order of their places."""
_PLACE = f"{WORKING}place"
"""The column of a message with the place of each row: the row group that it belongs to."""
_ARROW_BYTES = 1 << 26
"""The most bytes that Spark passes to a task at a time, besides its own limit on rows: for large images."""
_BATCH_ROWS = 1 << 12
"""The most rows at a time. To Spark, a block is a row: with a smaller limit, blocks may be larger."""
RAW_BYTES = 16
"""About the bytes of a raw number in a task, before rows are stacked."""
_SCHEMA = pa.schema({KEY: pa.int32(), "block": pa.binary()})
_TASK_BYTES = 1 << 25
"""About the bytes of rows per task, if places are smaller: starting a task takes a tenth of a second."""
_WAITING_BYTES = 1 << 25
"""The bytes of rows that a task collects before it makes blocks of them, so that there are few blocks."""


def packed(
    dealt: Iterable[tuple[NDArray[np.int64], pa.RecordBatch]], keys: NDArray[np.int32], *, block_rows: int
) -> Iterator[pa.RecordBatch]:
    """Blocks of at most ``block_rows`` rows; all rows of a block go to the same task. Runs in a task.

    ``dealt`` are rows with their places; ``keys`` are the keys of all places (:func:`keys_for`). A block has rows of
    several places: with very many places, blocks for a single place would have one row, and be mostly overhead.
    """
    places: list[NDArray[np.int64]] = []
    waiting: list[pa.RecordBatch] = []
    waiting_bytes = 0
    for found, rows in dealt:
        places.append(found)
        waiting.append(rows)
        waiting_bytes += rows.nbytes
        if waiting_bytes >= _WAITING_BYTES:
            yield _cut(np.concatenate(places), waiting, keys, block_rows)
            places, waiting, waiting_bytes = [], [], 0
    if waiting:
        yield _cut(np.concatenate(places), waiting, keys, block_rows)


def opened(blocks: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.Table, NDArray[np.int64]]]:
    """For each place of a task, all rows that the task has received, and the numbers of those that belong to the place.

    Runs in a task; the rows must fit into its memory. They are not separated here, because the caller separates and
    sorts the rows of a place in one step.
    """
    tables = []
    for batch in blocks:
        for block in batch.column(1):
            with pa.ipc.open_stream(block.as_buffer()) as reader:
                tables.append(reader.read_all())
    if not tables:
        return
    rows = pa.concat_tables(tables)
    del tables
    places = rows.column(_PLACE).to_numpy()
    rows = rows.drop_columns([_PLACE])
    numbers = places - places.min()
    order = np.argsort(numbers.astype(np.min_scalar_type(numbers.max())), kind="stable")  # small numbers: a radix sort
    stretches = _stretches(places[order])
    if len(stretches) > 1:  # otherwise it may be a large row group, which should not be copied
        rows = rows.combine_chunks()
    for begin, end in stretches:
        yield int(places[order[begin]]), rows, order[begin:end]


def num_tasks(places: int, all_bytes: int) -> int:
    """The number of tasks for the rows of all places: few, as starting a task takes time, but enough for memory."""
    return max(min(places, -(-all_bytes // _TASK_BYTES)), 1)


def keys_for(places: int, tasks: int) -> NDArray[np.int32]:
    """A key for each place, such that Spark's ``repartition(tasks, KEY)`` gives all tasks equally many places.

    Spark uses the hash of a key modulo the number of partitions. With the keys 0, 1, 2 …, a third of the tasks would
    have nothing to do, and others would need twice the memory or more.
    """
    keys = np.zeros(tasks, np.int32)
    missing, first = np.ones(tasks, bool), 0
    while missing.any():
        tried = np.arange(first, first + 2 * tasks, dtype=np.int32)
        found, at = np.unique(murmur3_of_ints(tried).astype(np.int64) % tasks, return_index=True)
        new = missing[found]
        keys[found[new]], missing[found[new]] = tried[at[new]], False
        first += 2 * tasks
    of_places: NDArray[np.int32] = keys[np.arange(places) * tasks // places]
    return of_places


def _cut(
    places: NDArray[np.int64], waiting: list[pa.RecordBatch], keys: NDArray[np.int32], block_rows: int
) -> pa.RecordBatch:
    order = np.argsort(places, kind="stable")
    rows, places = pa.Table.from_batches(waiting).take(order).combine_chunks(), places[order]
    rows = rows.append_column(_PLACE, pa.array(places.astype(np.int32)))
    cuts = [
        (at, min(at + block_rows, end))
        for begin, end in _stretches(keys[places])
        for at in range(begin, end, block_rows)
    ]
    of_blocks = keys[places[[begin for begin, _ in cuts]]]
    blocks = [to_message(rows.slice(begin, end - begin)) for begin, end in cuts]
    return pa.RecordBatch.from_arrays([pa.array(of_blocks), pa.array(blocks, pa.binary())], schema=_SCHEMA)


def _stretches(values: NDArray[np.int32]) -> list[tuple[int, int]]:
    """The begin and the end of each run of equal values."""
    changes = (np.flatnonzero(np.diff(values)) + 1).tolist()
    return list(zip([0, *changes], [*changes, len(values)], strict=True)) if len(values) else []


def to_message(rows: pa.Table | pa.RecordBatch) -> bytes:
    """Rows as an Arrow message, which is a single value to Spark."""
    content = pa.BufferOutputStream()
    with pa.ipc.new_stream(content, rows.schema) as writer:
        writer.write(rows)
    message: bytes = content.getvalue().to_pybytes()
    return message


def rows_of_block(batch_rows: int, row_bytes: int) -> int:
    """The number of rows of a block, such that a batch of blocks, as Spark passes it to a task, fits into memory."""
    return max(_ARROW_BYTES // (batch_rows * row_bytes), 1)


@contextmanager
def small_batches(spark: "SparkSession", row_bytes: int) -> Iterator[int]:
    """Within this context, Spark passes rows or blocks to tasks in batches that fit into memory. Yields their size.

    Runs on the driver.
    """
    key = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(key)
    limit = int(before or 0)
    largest = min(max(_ARROW_BYTES // row_bytes, 1), _BATCH_ROWS)
    rows = min(limit, largest) if limit > 0 else largest  # for Spark, 0 and less means no limit
    spark.conf.set(key, rows)
    try:
        yield rows
    finally:
        spark.conf.unset(key) if before is None else spark.conf.set(key, before)
