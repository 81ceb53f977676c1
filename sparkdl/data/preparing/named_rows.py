"""Fitted stages make inputs that have names of raw columns, in Spark tasks: a struct a row, of a binary value each."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkdl.data.preparing.features import InputPlan, NamedPart
from sparkdl.data.preparing.fitting import fitted_columns
from sparkdl.data.preparing.named_plan import WRONG_INPUT, width_field
from sparkdl.data.sql import by_place
from sparkdl.preprocessing import FittedPipeline, SparseVectors
from sparkdl.preprocessing.input_rows import made_input

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["transformed_by_name"]


def transformed_by_name(
    rows: "DataFrame", pipeline: FittedPipeline, inputs: InputPlan, keys: Collection[str] = ()
) -> "DataFrame":
    """The rows with the inputs in place of the raw columns, of which only ``keys`` stay. Runs on the driver, lazily."""
    from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

    kept = [name for name in rows.columns if name not in inputs.raw_columns or name in keys]
    read = by_place(rows, [*inputs.raw_columns, *kept])
    values = [StructField(name, BinaryType()) for name in inputs.parts]
    beside = [*(width_field(name) for name, part in inputs.parts.items() if part.form.kind == "sparse"), WRONG_INPUT]
    made = StructField(inputs.column, StructType([*values, *(StructField(name, IntegerType()) for name in beside)]))
    schema = StructType([*[rows.schema[name] for name in kept], made])
    return read.mapInArrow(_transformer(inputs, pipeline, [each.name for each in schema.fields]), schema)


def _transformer(
    inputs: InputPlan, pipeline: FittedPipeline, names: list[str]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    columns, staged, parts = list(inputs.raw_columns), inputs.staged_columns, inputs.parts

    def transform(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in filter(len, batches):
            raw = dict(zip(columns, batch.columns, strict=False))
            kept = batch.columns[len(columns) :]
            made = pipeline.made(fitted_columns([raw[name] for name in staged], staged, pipeline.needs))
            yield pa.RecordBatch.from_arrays([*kept, _made_rows({**raw, **made}, parts, len(batch))], names)

    return transform


def _made_rows(found: Mapping[str, object], parts: Mapping[str, NamedPart], rows: int) -> pa.Array:
    """The struct of each row."""
    values, widths, wrong, number = [], {}, np.zeros(rows, np.int32), 0
    for name, part in parts.items():
        column = found[part.made_in]
        if part.plan.shape:
            values.append(pixels_of(column))
            continue
        made = made_input(column, part.form)  # type: ignore[arg-type]
        values.append(made.values)
        if part.form.kind == "sparse":
            width = column.width if isinstance(column, SparseVectors) else column.shape[1]  # type: ignore[attr-defined]
            widths[width_field(name)] = pa.array(np.full(rows, width, np.int32))
        for what in part.may_be:
            number += 1
            if what in made.wrong:
                wrong[made.wrong[what] & (wrong == 0)] = number
    return pa.StructArray.from_arrays([*values, *widths.values(), pa.array(wrong)], [*parts, *widths, WRONG_INPUT])


def pixels_of(images: object) -> pa.Array:
    """The bytes of images whose sizes were looked at."""
    assert isinstance(images, pa.Array)
    return pc.struct_field(images, "data") if pa.types.is_struct(images.type) else images
