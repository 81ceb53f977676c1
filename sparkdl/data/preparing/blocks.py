"""Rows on their way from task to task, in blocks: Spark moves a few large values instead of every row by itself."""

from collections import defaultdict
from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkdl.preprocessing.hashes import murmur3_of_ints

__all__ = ["BLOCKS", "KEY", "keys_for", "opened", "packed"]

KEY = "key"
BLOCKS = f"{KEY} int, block binary"
"""The columns of blocks, for Spark: where the rows of a block go to, and an Arrow message with these rows."""
_SCHEMA = pa.schema({KEY: pa.int32(), "block": pa.binary()})
_WAITING_BYTES = 1 << 25
"""Rows that wait in a task until blocks are made of them: many enough that blocks are few."""


def packed(
    dealt: Iterable[tuple[NDArray[np.int32], pa.RecordBatch]], *, block_rows: int
) -> Iterator[pa.RecordBatch]:
    """Blocks of at most ``block_rows`` rows, each of rows that go to one place. Runs in a task.

    ``dealt`` are rows, and for each of them the key of its place.
    """
    keys: list[NDArray[np.int32]] = []
    waiting: list[pa.RecordBatch] = []
    waiting_bytes = 0
    for found, rows in dealt:
        keys.append(found)
        waiting.append(rows)
        waiting_bytes += rows.nbytes
        if waiting_bytes >= _WAITING_BYTES:
            yield from _cut(np.concatenate(keys), waiting, block_rows)
            keys, waiting, waiting_bytes = [], [], 0
    if waiting:
        yield from _cut(np.concatenate(keys), waiting, block_rows)


def opened(blocks: Iterable[pa.RecordBatch]) -> dict[int, pa.Table]:
    """By key, all rows that have come to a task. Runs in a task, whose memory they must fit into."""
    found: dict[int, list[pa.RecordBatch]] = defaultdict(list)
    for batch in blocks:
        for key, block in zip(batch.column(0).to_numpy(), batch.column(1), strict=True):
            with pa.ipc.open_stream(block.as_buffer()) as reader:
                found[int(key)] += list(reader)
    return {key: pa.Table.from_batches(batches) for key, batches in sorted(found.items())}


def keys_for(places: int) -> NDArray[np.int32]:
    """A key for each place, so that Spark's ``repartition(places, KEY)`` gives each a partition of its own.

    Spark takes the hash of a key modulo the number of partitions. The keys 0, 1, 2 … would leave a third of the
    partitions empty, and others would hold the rows of two places and more.
    """
    keys = np.zeros(places, np.int32)
    missing, first = np.ones(places, bool), 0
    while missing.any():
        tried = np.arange(first, first + 2 * places, dtype=np.int32)
        found, at = np.unique(murmur3_of_ints(tried).astype(np.int64) % places, return_index=True)
        new = missing[found]
        keys[found[new]], missing[found[new]] = tried[at[new]], False
        first += 2 * places
    return keys


def _cut(keys: NDArray[np.int32], waiting: list[pa.RecordBatch], block_rows: int) -> Iterator[pa.RecordBatch]:
    order = np.argsort(keys, kind="stable")
    rows, keys = pa.Table.from_batches(waiting).take(order).combine_chunks(), keys[order]
    begins = np.flatnonzero(np.diff(keys, prepend=np.int32(-1)))
    ends = [*begins[1:], len(keys)]
    for begin, end in zip(begins, ends, strict=True):
        starts = range(int(begin), int(end), block_rows)
        blocks = [_message(rows.slice(start, min(block_rows, int(end) - start))) for start in starts]
        same = np.full(len(blocks), keys[begin], np.int32)
        yield pa.RecordBatch.from_arrays([pa.array(same), pa.array(blocks, pa.binary())], schema=_SCHEMA)


def _message(rows: pa.Table) -> bytes:
    content = pa.BufferOutputStream()
    with pa.ipc.new_stream(content, rows.schema) as writer:
        writer.write_table(rows)
    message: bytes = content.getvalue().to_pybytes()
    return message
