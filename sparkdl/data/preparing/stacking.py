"""Columns of plain numbers become one value a row in a task, with the row's hashes and what is wrong with it.

Spark's own plan has an expression, and code, for each of these things and every column.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sparkdl.data.bad_rows import COUNT, NAMED, PROBLEM, WRONG, Problem, what_is_wrong
from sparkdl.data.card import InputSpec
from sparkdl.data.preparing.draw import DRAW, GIVEN, with_order
from sparkdl.data.preparing.features import Inputs
from sparkdl.data.preparing.label_column import LABEL, WEIGHT
from sparkdl.data.preparing.order import CONTENT_HASH
from sparkdl.data.preparing.row_hashes import hash_rows, is_hashable
from sparkdl.data.sql import identifier
from sparkdl.settings import Prepare

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["can_stack", "stacked", "stacked_problems", "unstacked"]

_NUMBERS = {"boolean", "tinyint", "smallint", "int", "bigint", "float", "double"}


class _Stack(NamedTuple):
    """What a task has to know. Columns are known by their places: the inputs, the keys, and what is handed on."""

    inputs: int
    keys: int
    seeds: tuple[tuple[str, int], ...]
    """The salts and seeds of a row's hashes."""
    numbers: tuple[int, ...]
    """Which problem is meant by the numbers that come with rows; the first is that of none."""
    missing: int
    """Which problem it is that the first column has no number; infinite is the next one, and the second column's are
    those behind these."""
    with_inputs: bool


def can_stack(rows: "DataFrame", inputs: Inputs, settings: Prepare) -> bool:
    """Whether all that is learned from are plain numbers, which need no stage, and keys have hashes of ours."""
    types = {column.name: column.dataType.simpleString() for column in rows.schema}
    return (
        inputs.pipeline is not None
        and inputs.assembles
        and all(kind in _NUMBERS for kind in inputs.raw_columns.values())
        and all(is_hashable(types[key]) for key in settings.keys)
        and PROBLEM not in rows.columns
    )


def stacked_problems(inputs: Inputs) -> list[Problem]:
    """What tasks look for in the columns of numbers, in this order."""
    problems = []
    for name in inputs.raw_columns:
        missing = f"column {name!r} has {COUNT} rows that are null or NaN"
        infinite = f"column {name!r} has {COUNT} rows that are infinite or beyond float32, which ends at 3.4e38"
        problems.append(Problem(missing, "drop these rows, add the stage `impute`", None))
        problems.append(Problem(infinite, "drop these rows", None))
    return problems


def stacked(
    rows: "DataFrame",
    inputs: Inputs,
    settings: Prepare,
    problems: Sequence[Problem],
    *,
    with_inputs: bool = False,
    with_names: bool = False,
) -> "DataFrame":
    """The rows with their hashes and the number of what is wrong with them. Runs on the driver, lazily.

    ``rows`` have their label, their weight where there are such, and what :func:`with_hashes` asks of them. The inputs,
    float32 in the column of the dataset, and the values by which errors name rows come along where they are wanted.
    """
    from pyspark.sql.types import BinaryType, LongType, StructField, StructType

    content = list(dict.fromkeys([*inputs.raw_columns, *settings.keys]))
    keys = content[len(inputs.raw_columns) :]
    tested = [place for place, problem in enumerate(problems, 1) if problem.test is not None]
    first = next(place for place, problem in enumerate(problems, 1) if problem.test is None)
    handed = [LABEL, *([WEIGHT] if settings.weight else []), *(name for name in (GIVEN, DRAW) if name in rows.columns)]
    handed += [NAMED] if with_names else []
    wrong = what_is_wrong([problems[place - 1] for place in tested])
    read = rows.select(*map(identifier, content), wrong, *handed)
    made = [CONTENT_HASH, *([] if DRAW in handed else [DRAW]), WRONG]
    fields = [*read.schema.fields[len(content) + 1 :], *[StructField(name, LongType()) for name in made]]
    fields += [StructField(inputs.column, BinaryType())] if with_inputs else []
    seeds = [("content", 0), *([("split", settings.seed)] if DRAW in made else [])]
    stack = _Stack(len(inputs.raw_columns), len(keys), tuple(seeds), (0, *tested), first, with_inputs)
    return with_order(read.mapInArrow(_stacker(stack, [each.name for each in fields]), StructType(fields)), settings)


def _stacker(stack: _Stack, names: Sequence[str]) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def stack_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in filter(len, batches):
            yield pa.RecordBatch.from_arrays(_stacked(batch.columns, stack), names)

    return stack_batches


def _stacked(columns: Sequence[pa.Array], stack: _Stack) -> list[pa.Array]:
    hashed = stack.inputs + stack.keys
    hashes = hash_rows(columns[:hashed], stack.seeds)
    wrong = np.array(stack.numbers)[columns[hashed].to_numpy()]
    matrix = np.empty((len(wrong), stack.inputs if stack.with_inputs else 0), np.float32)
    found = np.zeros(len(wrong), np.int64)
    for place, column in enumerate(columns[: stack.inputs]):
        values = _floats(column)
        if stack.with_inputs:
            matrix[:, place] = values
        if not np.isfinite(values).all():
            missing, new = np.isnan(values), found == 0
            found[new & missing] = stack.missing + 2 * place
            found[new & np.isinf(values)] = stack.missing + 2 * place + 1
    # What comes first in the list of problems is what a row is counted for.
    wrong = np.where((found > 0) & ((wrong == 0) | (wrong > found)), found, wrong)
    made = [*columns[hashed + 1 :], *map(pa.array, hashes), pa.array(wrong)]
    return [*made, _as_binary(matrix)] if stack.with_inputs else made


def _floats(column: pa.Array) -> NDArray[np.float32]:
    """Numbers as Spark's assembler and its cast to float32 make them: by way of float64; NaN where there is none."""
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    if column.null_count:
        column = pc.fill_null(column.cast(pa.float64(), safe=False), np.nan)
    values = column.to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):
        values = values if values.dtype == np.float32 else values.astype(np.float64).astype(np.float32)
    found: NDArray[np.float32] = values + np.float32(0)  # which turns -0 into 0, as the assembler does
    return found


def unstacked(rows: pa.Table, input: InputSpec) -> pa.Table:
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


def _as_binary(matrix: NDArray[np.float32]) -> pa.Array:
    """Each row's numbers as bytes."""
    offsets = np.arange(len(matrix) + 1, dtype=np.int32) * np.int32(4 * matrix.shape[1])
    return pa.Array.from_buffers(
        pa.binary(), len(matrix), [None, pa.py_buffer(offsets), pa.py_buffer(matrix.reshape(-1))]
    )
