"""Rows on their way to tasks and from task to task: in batches and blocks that memory has room for.

Spark moves a few large values, blocks, instead of every row by itself.
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
"""The columns of blocks, for Spark: by which key it finds the task that the rows of a block go to, and an Arrow message
with these rows, in the order of the task's places that they go to."""
_PLACE = f"{WORKING}place"
"""The column of a message that says to which place a row goes."""
_ARROW_BYTES = 1 << 26
"""Inputs that Spark hands to a task at a time, beside its own limit on rows: large images would not fit otherwise."""
_BATCH_ROWS = 1 << 12
"""The most rows at a time. A block that a task sends counts as a row to Spark: the fewer, the larger blocks may be."""
RAW_BYTES = 16
"""About what a raw number takes in a task, before rows are stacked."""
_SCHEMA = pa.schema({KEY: pa.int32(), "block": pa.binary()})
_TASK_BYTES = 1 << 25
"""About the most rows that a task gets of places that are smaller: each task takes a tenth of a second to begin."""
_WAITING_BYTES = 1 << 25
"""Rows that wait in a task until blocks are made of them: many enough that blocks are few."""


def packed(
    dealt: Iterable[tuple[NDArray[np.int64], pa.RecordBatch]], keys: NDArray[np.int32], *, block_rows: int
) -> Iterator[pa.RecordBatch]:
    """Blocks of at most ``block_rows`` rows, each of rows that go to one task. Runs in a task.

    ``dealt`` are rows, and for each of them its place; ``keys`` are those of all places, as of :func:`keys_for`. Blocks
    of one place each would be blocks of one row where there are very many places, and mostly bytes of messages.
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
    """By place, all rows that have come to a task, and which of them go there. Runs in a task.

    The rows must fit into its memory. They are not taken apart here: who orders those of a place does both at once.
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
    if len(stretches) > 1:  # else it may be a large row group, of which there is no second copy to be
        rows = rows.combine_chunks()
    for begin, end in stretches:
        yield int(places[order[begin]]), rows, order[begin:end]


def num_tasks(places: int, all_bytes: int) -> int:
    """How many tasks the rows of all places go to: few, as each takes a while to begin, but with room for all rows."""
    return max(min(places, -(-all_bytes // _TASK_BYTES)), 1)


def keys_for(places: int, tasks: int) -> NDArray[np.int32]:
    """A key for each place, by which Spark's ``repartition(tasks, KEY)`` gives all tasks equally many places.

    Spark takes the hash of a key modulo the number of partitions. With the keys 0, 1, 2 … a third of the tasks would
    have nothing to do, and others would need memory for twice as much and more.
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
    """Where the stretches of equal values begin and end."""
    changes = (np.flatnonzero(np.diff(values)) + 1).tolist()
    return list(zip([0, *changes], [*changes, len(values)], strict=True)) if len(values) else []


def to_message(rows: pa.Table | pa.RecordBatch) -> bytes:
    """Rows as one value to Spark: an Arrow message."""
    content = pa.BufferOutputStream()
    with pa.ipc.new_stream(content, rows.schema) as writer:
        writer.write(rows)
    message: bytes = content.getvalue().to_pybytes()
    return message


def rows_of_block(batch_rows: int, row_bytes: int) -> int:
    """How many rows a block may have, of which Spark hands so many to a task at a time as it would rows."""
    return max(_ARROW_BYTES // (batch_rows * row_bytes), 1)


@contextmanager
def small_batches(spark: "SparkSession", row_bytes: int) -> Iterator[int]:
    """Spark hands rows, or blocks of them, to tasks in batches that fit into memory: of as many as it says, at most.

    Runs on the driver, for the jobs that start in the context.
    """
    key = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(key)
    limit = int(before or 0)
    largest = min(max(_ARROW_BYTES // row_bytes, 1), _BATCH_ROWS)
    rows = min(limit, largest) if limit > 0 else largest  # to Spark, 0 and less is no limit
    spark.conf.set(key, rows)
    try:
        yield rows
    finally:
        spark.conf.unset(key) if before is None else spark.conf.set(key, before)
