"""Finds out whether any two rows are equal, from their hashes alone."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkdl.data.preparing.order import CONTENT_HASH

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["SENT", "are_equal", "have_equals", "sent_hashes"]

SENT = "part int, hashes binary"

_BITS = 10
"""Hashes whose first bits are equal are compared in one task: a thousandth of all, or several such parts."""
_AT_ONCE = 1 << 21
"""The number of hashes that a task sorts before it sends them."""


def have_equals(rows: "DataFrame") -> bool:
    """Whether any row is equal to another one. Runs on the driver; tasks exchange and compare only hashes."""

    def sent(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return sent_hashes(batch.column(0).to_numpy() for batch in batches)

    return are_equal(rows.select(CONTENT_HASH).mapInArrow(sent, SENT))


def are_equal(sent: "DataFrame") -> bool:
    """Whether there are equal hashes among those that tasks send by :func:`sent_hashes`. Runs on the driver."""
    return bool(sent.repartition("part").mapInArrow(_compared, "equal boolean").collect())


def sent_hashes(hashes: Iterable[NDArray[np.int64]]) -> Iterator[pa.RecordBatch]:
    """Hashes in parts, each of which is compared in one task."""
    waiting: list[NDArray[np.int64]] = []
    for some in hashes:
        waiting.append(some)
        if sum(map(len, waiting)) >= _AT_ONCE:
            yield _in_parts(np.concatenate(waiting))
            waiting = []
    if waiting:
        yield _in_parts(np.concatenate(waiting))


def _in_parts(hashes: NDArray[np.int64]) -> pa.RecordBatch:
    hashes = np.sort(hashes)
    parts, begins = np.unique(hashes >> (64 - _BITS), return_index=True)
    content = [part.tobytes() for part in np.split(hashes, begins[1:])] if len(parts) else []
    arrays = [pa.array(parts.astype(np.int32)), pa.array(content, pa.binary())]
    return pa.RecordBatch.from_arrays(arrays, ["part", "hashes"])


def _compared(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One row if some hashes are equal, otherwise no row."""
    found: dict[int, list[NDArray[np.int64]]] = defaultdict(list)
    for batch in batches:
        for part, hashes in zip(batch.column(0).to_pylist(), batch.column(1), strict=True):
            found[part].append(np.frombuffer(hashes.as_buffer(), np.int64))
    in_order = (np.sort(np.concatenate(parts)) for parts in found.values())
    if any((hashes[1:] == hashes[:-1]).any() for hashes in in_order):
        yield pa.RecordBatch.from_arrays([pa.array([True])], ["equal"])
