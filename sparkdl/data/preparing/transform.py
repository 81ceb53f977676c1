"""Fitted stages make inputs of raw columns, in Spark tasks."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkdl.data.card import InputSpec
from sparkdl.data.preparing.features import InputPlan
from sparkdl.data.preparing.fitting import fitted_columns
from sparkdl.data.preparing.named_rows import transformed_by_name
from sparkdl.data.sql import by_place
from sparkdl.preprocessing import FittedPipeline, SparseVectors, as_floats, as_matrix, as_structs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["as_bytes", "as_lists", "from_bytes", "transformed"]


def transformed(
    rows: "DataFrame",
    pipeline: FittedPipeline,
    inputs: InputPlan,
    keys: Collection[str] = (),
    *,
    in_bytes: bool = False,
) -> "DataFrame":
    """The rows with the inputs in place of the raw columns, of which only ``keys`` stay. Runs on the driver, lazily.

    Inputs are arrays of float32 or their bytes, where they have names the structs of
    :mod:`sparkdl.data.preparing.named_rows`, or what :func:`sparkdl.data.sparse_rows.decode_sparse` reads.
    """
    from pyspark.sql.types import (
        ArrayType,
        BinaryType,
        ByteType,
        DoubleType,
        FloatType,
        IntegerType,
        StructField,
        StructType,
    )

    if inputs.parts:
        return transformed_by_name(rows, pipeline, inputs, keys)
    kept = [name for name in rows.columns if name not in inputs.raw_columns or name in keys]
    read = by_place(rows, [*inputs.raw_columns, *kept])
    sparse = inputs.kind == "sparse"
    parts = {"type": ByteType(), "size": IntegerType(), "indices": ArrayType(IntegerType())}
    parts["values"] = ArrayType(DoubleType())
    vector = StructType([StructField(name, kind) for name, kind in parts.items()])
    kind = vector if sparse else BinaryType() if in_bytes else ArrayType(FloatType())
    made = StructField(inputs.column, kind)
    schema = StructType([*[rows.schema[name] for name in kept], made])
    names = [each.name for each in schema.fields]
    form = as_structs if sparse else as_bytes if in_bytes else as_lists
    return read.mapInArrow(_transformer(dict(inputs.raw_columns), pipeline, inputs.column, form, names), schema)


def _transformer(
    raw_columns: dict[str, str],
    pipeline: FittedPipeline,
    output: str,
    form: Callable[[Any], pa.Array],
    names: Sequence[str],
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def transform(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in filter(len, batches):
            raw, kept = batch.columns[: len(raw_columns)], batch.columns[len(raw_columns) :]
            made = pipeline.transform(fitted_columns(raw, raw_columns, pipeline.needs), output)
            yield pa.RecordBatch.from_arrays([*kept, form(made)], names)

    return transform


def as_lists(vectors: NDArray[np.floating[Any]] | SparseVectors) -> pa.Array:
    """Vectors as lists of float32, in the form that Spark takes."""
    return as_floats(vectors).cast(pa.list_(pa.float32()))


def as_bytes(vectors: NDArray[np.floating[Any]] | SparseVectors) -> pa.Array:
    """Vectors as the bytes of float32: one value a row, which Spark hands on without a look at it."""
    matrix = as_matrix(vectors)
    offsets = np.arange(len(matrix) + 1, dtype=np.int32) * np.int32(4 * matrix.shape[1])
    return pa.Array.from_buffers(
        pa.binary(), len(matrix), [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(matrix).reshape(-1))]
    )


def from_bytes(rows: pa.Table, input: InputSpec) -> pa.Table:
    """Rows with lists of numbers in place of their bytes; others as they are."""
    place = rows.schema.get_field_index(input.column)
    if input.kind != "vector" or not pa.types.is_binary(rows.schema.field(place).type):
        return rows
    arrays = []
    for chunk in rows.column(place).chunks:
        _, offsets, content = chunk.buffers()
        begin = np.frombuffer(offsets, np.int32, 1, 4 * chunk.offset)[0]
        values = np.frombuffer(content, np.float32, len(chunk) * input.shape[0], int(begin))
        arrays.append(pa.FixedSizeListArray.from_arrays(pa.array(values), input.shape[0]))
    return rows.set_column(place, input.column, pa.chunked_array(arrays))
