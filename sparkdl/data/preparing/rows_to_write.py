"""The rows of a dataset on their way to its files: inputs, label, weight, split and hashes."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkdl.data.card import LABEL_COLUMN, WEIGHT_COLUMN
from sparkdl.data.class_indices import class_indices
from sparkdl.data.preparing.known_rows import KnownRows, Pairs
from sparkdl.data.preparing.order import CONTENT_HASH, ORDER, SPLIT
from sparkdl.data.preparing.row_facts import splits_of
from sparkdl.data.preparing.row_readers import OverBatches
from sparkdl.data.preparing.stacking import made_inputs
from sparkdl.data.preparing.transform import as_bytes
from sparkdl.preprocessing import FittedPipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["RowsOfSpark", "RowsOfTasks", "RowsToWrite"]

_BUCKETS = "split string, bucket bigint, count bigint"
_AT_ONCE = 1 << 21
"""Rows whose buckets a task counts at a time."""


class RowsToWrite(Protocol):
    """Rows that are written, and that tasks deal."""

    @property
    def value_bytes(self) -> int:
        """At least so much takes what Spark hands to a task as one row."""

    def map(self, columns: Sequence[str], work: OverBatches, schema: str) -> "DataFrame":
        """What ``work`` makes, in tasks, of batches of these columns. Runs on the driver, lazily."""

    def count_buckets(self, shift: int) -> "DataFrame":
        """By ``split`` and ``bucket``, which are the bits of the order from ``shift`` on, the ``count`` of rows."""


class RowsOfSpark(NamedTuple):
    """Rows that Spark sees."""

    rows: "DataFrame"
    counted: "DataFrame"
    """The same rows, of which nothing but split and order has to be known."""

    @property
    def value_bytes(self) -> int:
        """As :attr:`RowsToWrite.value_bytes`."""
        return 1

    def map(self, columns: Sequence[str], work: OverBatches, schema: str) -> "DataFrame":
        """As :meth:`RowsToWrite.map`."""
        return self.rows.select(*columns).mapInArrow(work, schema)

    def count_buckets(self, shift: int) -> "DataFrame":
        """As :meth:`RowsToWrite.count_buckets`."""
        from pyspark.sql import functions as sf

        return self.counted.groupBy(sf.col(SPLIT).alias("split"), sf.shiftright(ORDER, shift).alias("bucket")).count()


class RowsOfTasks(NamedTuple):
    """Rows that tasks read themselves."""

    known: KnownRows
    made_by: FittedPipeline
    label_names: tuple[str, ...]

    @property
    def value_bytes(self) -> int:
        """As :attr:`RowsToWrite.value_bytes`."""
        return self.known.value_bytes

    def map(self, columns: Sequence[str], work: OverBatches, schema: str) -> "DataFrame":
        """As :meth:`RowsToWrite.map`; a label is the index of its class."""
        plan, inputs, made_by, names = self.known.plan, self.known.inputs, self.made_by, self.label_names
        raw_columns = dict(inputs.raw_columns)

        def examples(pairs: Pairs) -> Iterator[pa.RecordBatch]:
            for rows, facts in pairs:
                matrix = made_inputs(rows.columns[: len(raw_columns)], raw_columns, made_by, inputs.column)
                split, splits = splits_of(facts, plan)
                found = {
                    inputs.column: as_bytes(matrix),
                    LABEL_COLUMN: class_indices(facts.column("label"), names) if names else facts.column("label"),
                    ORDER: facts.column("order"),
                    CONTENT_HASH: facts.column("content"),
                    SPLIT: pa.array(splits, pa.string()).take(pa.array(split)),
                }
                if plan.weight is not None:
                    found |= {WEIGHT_COLUMN: rows.column(plan.weight).cast(pa.float64(), safe=False)}
                yield pa.RecordBatch.from_arrays([found[name] for name in columns], list(columns))

        return self.known.map(lambda pairs: work(examples(pairs)), schema)

    def count_buckets(self, shift: int) -> "DataFrame":
        """As :meth:`RowsToWrite.count_buckets`."""
        from pyspark.sql import functions as sf

        plan = self.known.plan

        def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            waiting: dict[str, list[NDArray[np.int64]]] = {}
            rows = 0
            for facts in batches:
                split, names = splits_of(facts, plan)
                buckets = facts.column("order").to_numpy() >> shift
                for place in np.unique(split):
                    waiting.setdefault(names[place], []).append(buckets[split == place])
                rows += len(facts)
                if rows >= _AT_ONCE:
                    yield from map(_counted, waiting, waiting.values())
                    waiting, rows = {}, 0
            yield from map(_counted, waiting, waiting.values())

        found = self.known.map_facts(count, _BUCKETS)
        return found.groupBy("split", "bucket").agg(sf.sum("count").alias("count"))


def _counted(split: str, buckets: Sequence[NDArray[np.int64]]) -> pa.RecordBatch:
    found, counts = np.unique(np.concatenate(buckets), return_counts=True)
    names = pa.array([split], pa.string()).take(pa.array(np.zeros(len(found), np.int32)))
    return pa.RecordBatch.from_arrays([names, pa.array(found), pa.array(counts)], ["split", "bucket", "count"])
