"""Fits stages to the training rows: tasks compute sums and counts of their rows, and Spark adds these up."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkdl.data.sql import by_place
from sparkdl.preprocessing import Column, FittedPipeline
from sparkdl.preprocessing.learner import Facts, Learner, Wanted
from sparkdl.preprocessing.raw_rows import fitted_rows
from sparkdl.preprocessing.sums import ExactSums, added
from sparkdl.preprocessing.unfitted_pipeline import UnfittedPipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["WHAT_ROWS_SAY", "fit", "fitted_columns", "look", "look_at"]

WHAT_ROWS_SAY = "stage int, place int, text string, times bigint, sums binary"
"""The columns that tasks return: sums of a stage, or how often it has counted a text."""
_SCHEMA = pa.schema(
    {"stage": pa.int32(), "place": pa.int32(), "text": pa.string(), "times": pa.int64(), "sums": pa.binary()}
)
_TEXTS_WAITING = 1 << 20
"""The number of counted texts that a task keeps before it passes them on."""


def fit(pipeline: UnfittedPipeline, looked_at: "Callable[[UnfittedPipeline], DataFrame]") -> FittedPipeline:
    """Fit the stages. Runs on the driver; tasks read the rows.

    ``looked_at`` returns the sums and counts for the stages that can be fitted next (:func:`look_at`): one pass over
    the rows serves all stages that do not depend on one another. Raises :class:`~sparkdl.errors.DataError` for rows
    that a stage cannot be fitted to.
    """
    while learners := pipeline.learners:
        found = looked_at(pipeline).persist()
        try:
            pipeline = pipeline.learned(_facts(found, learners))
        finally:
            found.unpersist()
    return pipeline.fitted()


def look_at(rows: "DataFrame", raw_columns: Mapping[str, str], pipeline: UnfittedPipeline) -> "DataFrame":
    """The sums and counts of rows for the stages that can be fitted next. Runs on the driver, lazily.

    The rows have the raw columns of these Spark types, and are usable.
    """
    kinds = dict(raw_columns)

    def look_at_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return look((batch.columns for batch in batches), kinds, pipeline)

    return by_place(rows, list(raw_columns)).mapInArrow(look_at_batches, WHAT_ROWS_SAY)


def fitted_columns(
    columns: Iterable[pa.Array], raw_columns: Mapping[str, str], needs: Mapping[str, int | None]
) -> dict[str, Column]:
    """Raw columns of usable rows in the types that stages need. Runs in a task."""
    return {
        name: fitted_rows(column, name, kind, width=needs.get(name), gaps=True)[0]
        for column, (name, kind) in zip(columns, raw_columns.items(), strict=True)
    }


def look(
    rows: Iterable[Sequence[pa.Array]], raw_columns: Mapping[str, str], pipeline: UnfittedPipeline
) -> Iterator[pa.RecordBatch]:
    """The sums and counts of some rows for the stages that can be fitted next. Runs in a task."""
    sums: dict[int, ExactSums] = {}
    texts: dict[tuple[int, int], list[pa.Array]] = defaultdict(list)
    waiting = 0
    needs = pipeline.needs
    for columns in rows:
        if not len(columns[0]):
            continue
        for found in pipeline.look(fitted_columns(columns, raw_columns, needs)):
            sums[found.stage] = added(sums[found.stage], found.sums) if found.stage in sums else found.sums
            for place, counted in enumerate(found.texts):
                texts[found.stage, place].append(pc.value_counts(counted))
                waiting += len(texts[found.stage, place][-1])
        if waiting > _TEXTS_WAITING:
            yield from _counted(texts)
            texts.clear()
            waiting = 0
    yield from _counted(texts)
    if sums:
        yield _summed(sums)


def _counted(texts: Mapping[tuple[int, int], list[pa.Array]]) -> Iterator[pa.RecordBatch]:
    """How often each text occurs."""
    for (stage, place), parts in texts.items():
        table = pa.table(
            {
                "text": pa.concat_arrays([part.field(0).cast(pa.string()) for part in parts]),
                "times": pa.concat_arrays([part.field(1) for part in parts]),
            }
        )
        counts = table.group_by("text").aggregate([("times", "sum")])
        count = len(counts)
        arrays = [
            pa.array(np.full(count, stage, np.int32)),
            pa.array(np.full(count, place, np.int32)),
            counts.column("text").combine_chunks(),
            counts.column("times_sum").combine_chunks(),
            pa.nulls(count, pa.binary()),
        ]
        yield pa.RecordBatch.from_arrays([_one(each) for each in arrays], schema=_SCHEMA)


def _one(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column


def _summed(sums: Mapping[int, ExactSums]) -> pa.RecordBatch:
    found = [{"stage": stage, "sums": values.tobytes()} for stage, values in sums.items()]
    return pa.RecordBatch.from_pylist(found, schema=_SCHEMA)


def _merge(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The total of the sums of all tasks."""
    sums: dict[int, ExactSums] = {}
    for batch in batches:
        for stage, content in zip(batch.column("stage").to_pylist(), batch.column("sums"), strict=True):
            values = np.frombuffer(content.as_buffer(), np.float64).reshape(2, -1)
            sums[stage] = added(sums[stage], values) if stage in sums else values
    if sums:
        yield _summed(sums)


def _facts(found: "DataFrame", learners: Mapping[int, Learner]) -> dict[int, Facts]:
    from pyspark.sql import functions as sf

    summed = found.where(sf.col("sums").isNotNull()).repartition(1).mapInArrow(_merge, WHAT_ROWS_SAY).collect()
    sums = {row["stage"]: np.frombuffer(row["sums"], np.float64).reshape(2, -1) for row in summed}
    counts: dict[int, dict[int, dict[str, int]]] = defaultdict(lambda: defaultdict(dict))
    for row in _counts(found, learners):
        counts[row["stage"]][row["place"]][row["text"]] = row["times"]
    return {stage: Facts(sums.get(stage, np.zeros((2, 0))), counts[stage]) for stage in learners}


def _counts(found: "DataFrame", learners: Mapping[int, Learner]) -> list[Any]:
    """How often each text occurs, for the texts that stages need."""
    from pyspark.sql import functions as sf

    key = ["stage", "place", "text"]
    counted = found.where(sf.col("text").isNotNull()).groupBy(*key).agg(sf.sum("times").alias("times"))
    every = [stage for stage, learner in learners.items() if learner.wanted == Wanted()]
    rows = list(counted.where(sf.col("stage").isin(every)).collect()) if every else []
    for stage, learner in learners.items():
        if stage not in every:
            enough = (sf.col("stage") == stage) & (sf.col("times") >= learner.wanted.at_least)
            in_order = counted.where(enough).orderBy(sf.desc("times"), "text")
            rows += (in_order.limit(learner.wanted.most) if learner.wanted.most else in_order).collect()
    return rows
