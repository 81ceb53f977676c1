"""The specification of a dataset's inputs for its card."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from sparkdl.data.card import InputSpec
from sparkdl.data.preparing.look import Look
from sparkdl.data.preparing.rows_to_write import RowsOfTasks
from sparkdl.data.sql import identifier
from sparkdl.preprocessing import FittedPipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["input_spec"]


def input_spec(found: Look, fitted: FittedPipeline | None, rows: "DataFrame") -> InputSpec:
    """The input's specification; the width of a vector that stages make is taken from the first row."""
    inputs = found.inputs
    if inputs.assembles and not inputs.widths:
        return InputSpec(column=inputs.column, kind="vector", shape=(len(inputs.raw_columns),), dtype="float32")
    if inputs.shape:
        return InputSpec(column=inputs.column, kind="image", shape=inputs.shape, dtype="uint8")
    if not inputs.preprocessed and inputs.source in inputs.widths:  # rows of other widths were already found
        return InputSpec(column=inputs.column, kind="vector", shape=(inputs.widths[inputs.source],), dtype="float32")
    if found.known and fitted:
        rows = RowsOfTasks(found.known, fitted, ()).map([inputs.column], _the_first, f"`{inputs.column}` binary")
    (row,) = rows.select(identifier(inputs.source)).limit(1).collect()
    value = row[0]
    if inputs.kind == "sparse":
        width = len(value["values"]) if value["size"] is None else value["size"]
        return InputSpec(column=inputs.column, kind="sparse", shape=(width,), dtype="float32")
    width = len(value) // np.dtype(np.float32).itemsize if isinstance(value, bytes | bytearray) else len(value)
    return InputSpec(column=inputs.column, kind="vector", shape=(width,), dtype="float32")


def _the_first(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in islice(batches, 1):
        yield batch.slice(0, 1)
