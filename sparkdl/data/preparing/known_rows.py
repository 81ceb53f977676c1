"""Rows whose facts (hashes, label, split) tasks compute themselves, so that Spark only handles blocks of facts.

Passing a row from a task to Spark, storing it, and passing it back costs a core about three microseconds. A block of
some thousand rows costs no more than one row.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from decimal import Decimal
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from sparkdl.data.preparing.blocks import RAW_BYTES, small_batches, to_message
from sparkdl.data.preparing.draw import split_ends
from sparkdl.data.preparing.equals import SENT, are_equal, sent_hashes
from sparkdl.data.preparing.examine import Findings, summed_up
from sparkdl.data.preparing.features import InputPlan
from sparkdl.data.preparing.fitting import WHAT_ROWS_SAY, look
from sparkdl.data.preparing.label_column import LABEL
from sparkdl.data.preparing.numbering import BLOCKS, numbered
from sparkdl.data.preparing.order import SPLIT
from sparkdl.data.preparing.row_facts import FactsPlan, facts_of, from_message, splits_of
from sparkdl.data.preparing.row_readers import FileReader, SparkReader
from sparkdl.data.preparing.stacking import content_columns, row_tests
from sparkdl.errors import DataError
from sparkdl.preprocessing import UnfittedPipeline
from sparkdl.settings import Prepare
from sparkdl.settings.section import TaskName

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

__all__ = ["KnownRows", "know_rows", "plan_facts"]

_FACTS_BYTES = 1 << 19
"""About the bytes of a block of facts."""
_CHANGED = "the rows changed while they were read; prepare from a source that gives the same rows each time"
_PLAIN = {"boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string"}
"""The types of labels and weights that tasks can read like Spark."""
_COUNTS = f"{SPLIT} string, {LABEL} string, rows bigint, hashes decimal(38,0)"
_TRAIN = "train"

OverFacts = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
Pairs = Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]
"""Batches of rows, each with its facts."""


class KnownRows(NamedTuple):
    """Rows, and the blocks of their facts, which Spark caches."""

    reader: FileReader | SparkReader
    columns: list[str]
    """The columns that are read; those from which inputs are made come first."""
    inputs: InputPlan
    plan: FactsPlan
    blocks: "DataFrame"
    numbered: bool
    """Whether some rows are equal."""
    findings: Findings

    @property
    def value_bytes(self) -> int:
        """About the bytes of what is one row to Spark: a block, or a row that Spark reads."""
        return _FACTS_BYTES if isinstance(self.reader, FileReader) else RAW_BYTES * len(self.columns)

    def map(self, work: Callable[[Pairs], Iterator[pa.RecordBatch]], schema: str) -> "DataFrame":
        """Apply ``work``, in tasks, to batches of rows and their facts. Runs on the driver, lazily."""
        if isinstance(self.reader, SparkReader):  # Spark's rows may come in another order each time
            plan = self.plan
            return self.reader.map(self.columns, lambda batches: work(_found_again(batches, plan)), schema)
        read = self.reader.reading(self.columns)

        def pairs(batches: Iterable[pa.RecordBatch]) -> Pairs:
            task, rows = -1, iter(())
            for number, facts in _facts(batches):
                if number != task:
                    task, rows = number, read(number)
                found = next(rows, None)
                if found is None or len(found) != len(facts):
                    raise DataError(_CHANGED)
                yield found, facts

        return self.blocks.mapInArrow(lambda batches: work(pairs(batches)), schema)

    def map_facts(
        self, work: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], schema: str
    ) -> "DataFrame":
        """Apply ``work``, in tasks, to the facts alone. Runs on the driver, lazily."""
        return _map_facts(self.blocks, work, schema)

    def look_at_training(self, pipeline: UnfittedPipeline) -> "DataFrame":
        """Like :func:`~sparkdl.data.preparing.fitting.look_at`. Runs on the driver, lazily."""
        raw_columns, plan = dict(self.inputs.raw_columns), self.plan

        def training(pairs: Pairs) -> Iterator[list[pa.Array]]:
            for rows, facts in pairs:
                splits, names = splits_of(facts, plan)
                kept = pa.array(splits == names.index(_TRAIN))
                yield [column.filter(kept) for column in rows.columns[: len(raw_columns)]]

        return self.map(lambda pairs: look(training(pairs), raw_columns, pipeline), WHAT_ROWS_SAY)


def plan_facts(schema: "StructType", inputs: InputPlan, settings: Prepare, task: TaskName | None) -> FactsPlan | None:
    """The facts that tasks compute; None if Spark is needed: for times, groups for ranking, and shares by class."""
    split = settings.split
    if task not in ("classification", "regression") or split.time or split.stratify or settings.on_bad_rows != "error":
        return None
    read_here = [settings.label, *([settings.weight] if settings.weight else [])]
    if any(schema[name].dataType.simpleString() not in _PLAIN for name in read_here):
        return None
    if split.column and schema[split.column].dataType.simpleString() != "string":
        return None
    columns = content_columns(inputs, settings)
    return FactsPlan(
        identifying=len(columns),
        tests=row_tests(inputs, settings),
        label=columns.index(settings.label),
        names_classes=task == "classification",
        weight=columns.index(settings.weight) if settings.weight else None,
        given=columns.index(split.column) if split.column else None,
        together=tuple(map(columns.index, split.group)),
        seed=settings.seed,
        ends=tuple(split_ends(settings)),
    )


def know_rows(
    reader: FileReader | SparkReader,
    inputs: InputPlan,
    plan: FactsPlan,
    settings: Prepare,
    *,
    tells_equals_apart: bool,
) -> KnownRows | None:
    """Compute the facts of all rows. Runs on the driver; tasks read the rows once. The caller unpersists the blocks.

    None if Spark is needed: to name a row that cannot be used, or because rows that Spark reads are equal. Raises the
    errors of :func:`~sparkdl.data.preparing.examine.examine` about splits.
    """
    spark, columns = reader.rows.sparkSession, content_columns(inputs, settings)
    with ExitStack() as kept:
        with small_batches(spark, RAW_BYTES * len(columns)):
            blocks = first = _looked_at(reader, columns, plan).persist()
            kept.callback(first.unpersist)
            if blocks.where("facts IS NULL").count():
                return None
        with small_batches(spark, _FACTS_BYTES):
            equals = tells_equals_apart and are_equal(_map_facts(blocks, _hashes, SENT))
            if equals and isinstance(reader, SparkReader):
                return None
            if equals and isinstance(reader, FileReader):
                blocks = numbered(blocks, len(reader.dealt), plan).persist()
                kept.callback(blocks.unpersist)
            findings = _findings(blocks, plan, settings)
            if findings is None:
                return None
        kept.pop_all()
    if equals:
        first.unpersist()
    return KnownRows(reader, columns, inputs, plan, blocks, equals, findings)


def _looked_at(reader: FileReader | SparkReader, columns: Sequence[str], plan: FactsPlan) -> "DataFrame":
    """All rows as blocks of facts."""
    if isinstance(reader, FileReader):
        return reader.map_tasks(_knower(reader.reading(columns), plan), BLOCKS)
    return reader.map(columns, lambda batches: _known(0, filter(len, batches), plan), BLOCKS)


def _knower(
    read: Callable[[int], Iterator[pa.RecordBatch]], plan: FactsPlan
) -> Callable[[Iterable[int]], Iterator[pa.RecordBatch]]:
    def know(tasks: Iterable[int]) -> Iterator[pa.RecordBatch]:
        for task in tasks:
            yield from _known(task, read(task), plan)

    return know


def _known(task: int, batches: Iterable[pa.RecordBatch], plan: FactsPlan) -> Iterator[pa.RecordBatch]:
    """Blocks of the rows of a task, up to a row that needs Spark."""
    for number, rows in enumerate(batches):
        facts = facts_of(rows, plan)
        yield _block(task, number, facts)
        if facts is None:
            return


def _found_again(batches: Iterable[pa.RecordBatch], plan: FactsPlan) -> Pairs:
    """The rows that Spark reads, each batch with its facts."""
    for rows in filter(len, batches):
        facts = facts_of(rows, plan)
        if facts is None:
            raise DataError(_CHANGED)
        yield rows, facts


def _block(task: int, number: int, facts: pa.RecordBatch | None) -> pa.RecordBatch:
    message = pa.array([None if facts is None else to_message(facts)], pa.binary())
    return pa.RecordBatch.from_arrays(
        [pa.array([task], pa.int32()), pa.array([number], pa.int32()), message], ["task", "number", "facts"]
    )


def _facts(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The facts of blocks, with their task's number."""
    for batch in batches:
        for task, message in zip(batch.column(0).to_pylist(), batch.column(2), strict=True):
            yield task, from_message(message)


def _hashes(facts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return sent_hashes(each.column("content").to_numpy() for each in facts)


def _map_facts(blocks: "DataFrame", work: OverFacts, schema: str) -> "DataFrame":
    return blocks.mapInArrow(lambda batches: work(facts for _, facts in _facts(batches)), schema)


def _findings(blocks: "DataFrame", plan: FactsPlan, settings: Prepare) -> Findings | None:
    from pyspark.sql import functions as sf

    counted = _map_facts(blocks, _counter(plan), _COUNTS).groupBy(SPLIT, LABEL)
    found = counted.agg(sf.sum("rows").alias("rows"), sf.sum("hashes").alias("hashes")).collect()
    if not found:
        raise DataError("there are no rows to prepare")
    return summed_up(found, settings, "classification" if plan.names_classes else "regression")


def _counter(plan: FactsPlan) -> OverFacts:
    """The number of rows by split and label; one of these entries has the sum of all hashes."""

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        counts: dict[tuple[str, str | None], int] = {}
        hashes = 0
        for facts in batches:
            content = facts.column("content").to_numpy()
            hashes += (int((content >> 32).sum()) << 32) + int((content & 0xFFFFFFFF).sum())
            for key, rows in _counts(facts, plan):
                counts[key] = counts.get(key, 0) + rows
        if counts:
            splits, labels = zip(*counts, strict=True)
            sums = [Decimal(hashes), *[Decimal(0)] * (len(counts) - 1)]
            arrays = [
                pa.array(splits, pa.string()),
                pa.array(labels, pa.string()),
                pa.array(counts.values(), pa.int64()),
            ]
            arrays.append(pa.array(sums, pa.decimal128(38, 0)))
            yield pa.RecordBatch.from_arrays(arrays, [SPLIT, LABEL, "rows", "hashes"])

    return count


def _counts(facts: pa.RecordBatch, plan: FactsPlan) -> Iterator[tuple[tuple[str, str | None], int]]:
    splits, names = splits_of(facts, plan)
    label = facts.column("label")
    labels = label.dictionary.to_pylist() if plan.names_classes else [None]
    of_rows = label.indices.to_numpy() if plan.names_classes else 0
    counts = np.bincount(splits * len(labels) + of_rows, minlength=len(names) * len(labels))
    for place in np.flatnonzero(counts):
        split, number = divmod(int(place), len(labels))
        yield (names[split], labels[number]), int(counts[place])
