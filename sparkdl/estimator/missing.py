"""Replaces missing values of features by the mean of the others. Runs on the driver; Spark tasks add up the sums."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql.functions import col, get, isnan, lit, transform, when
from pyspark.sql.functions import split as split_text

__all__ = ["filled", "means_of"]

Vector = npt.NDArray[Any]


def means_of(rows: DataFrame, features: str, missing: float) -> list[float]:
    """The mean of each element of a column of arrays, over the values that are not missing; 0 if all are missing."""
    sums, counts = np.zeros(0), np.zeros(0)
    arrays = rows.select(col(features).cast("array<float>").alias(features))
    for found in arrays.mapInArrow(_sums(missing), "sums array<double>, counts array<double>").collect():
        sums, counts = _added(sums, np.array(found.sums)), _added(counts, np.array(found.counts))
    return [float(mean) for mean in sums / np.maximum(counts, 1)]


def filled(features: Column, missing: float, means: Sequence[float]) -> Column:
    """The arrays, with the element's mean in place of each value that is null, NaN, or equals ``missing``."""
    # One text, because Spark would be slow to analyse a plan with a literal for each feature.
    mean_of = split_text(lit(",".join(map(repr, means))), ",").cast("array<float>")

    def fill(value: Column, place: Column) -> Column:
        absent = value.isNull() | isnan(value) | (value == lit(missing).cast("float"))
        return when(absent, get(mean_of, place)).otherwise(value)

    return transform(features.cast("array<float>"), fill)


def _sums(missing: float) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        sums, counts = np.zeros(0), np.zeros(0)
        for batch in batches:
            rows = batch.column(0).drop_null()  # prepare reports rows without features, and where they are
            values = rows.flatten().to_numpy(zero_copy_only=False)
            lengths = np.asarray(rows.value_lengths())
            places = np.arange(len(values)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
            there = ~np.isnan(values) & (values != np.float32(missing))
            sums = _added(sums, np.bincount(places[there], weights=values[there]))
            counts = _added(counts, np.bincount(places[there]))
        yield pa.RecordBatch.from_pydict({"sums": pa.array([sums]), "counts": pa.array([counts])})

    return task


def _added(one: Vector, other: Vector) -> Vector:
    """The sum of two vectors, of which one may be shorter."""
    total = np.zeros(max(len(one), len(other)))
    total[: len(one)] += one
    total[: len(other)] += other
    return total
