"""Raw columns become one value a row in a task, with the row's hashes and what is wrong with it.

Spark's own plan has an expression, and code, for each of these things and every column.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sparkdl.data.bad_rows import NAMED, PROBLEM, Problem
from sparkdl.data.preparing.column_problems import column_problems
from sparkdl.data.preparing.draw import DRAW, begin_of_train, draws_rows, in_train
from sparkdl.data.preparing.features import InputPlan
from sparkdl.data.preparing.fitting import WHAT_ROWS_SAY, fitted_columns, look
from sparkdl.data.preparing.order import CONTENT_HASH
from sparkdl.data.preparing.row_hashes import hash_rows, is_hashable
from sparkdl.data.preparing.row_readers import RowReader
from sparkdl.data.preparing.stages import TEXT_STAGES
from sparkdl.data.preparing.transform import as_bytes, as_lists
from sparkdl.data.raw_columns import require_columns
from sparkdl.data.working_columns import WORKING
from sparkdl.preprocessing import FittedPipeline, UnfittedPipeline, as_matrix
from sparkdl.settings import Prepare

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    "FOUND",
    "RowTest",
    "can_stack",
    "content_columns",
    "fails",
    "look_at_training",
    "made_inputs",
    "row_tests",
    "stacked",
    "stacked_problems",
]

FOUND = f"{WORKING}found"
"""The working column that says which of :func:`stacked_problems` a row has, counted from 1, or 0."""

_NUMBERS = {"boolean", "tinyint", "smallint", "int", "bigint", "float", "double"}
_OTHERS = re.compile(r"string|date|timestamp|timestamp_ntz|decimal\(.*\)")


class RowTest(NamedTuple):
    """Something that a task looks for in a raw column."""

    column: int
    what: str
    """``missing`` or ``infinite``."""
    problem: int
    """Its number among those of the inputs, from 1."""
    staged: bool
    """Whether stages take the numbers, which may be beyond float32 then."""


class _Stack(NamedTuple):
    """What a task has to know. Columns are known by their places: the inputs, then others that identify a row."""

    raw_columns: dict[str, str]
    identifying: int
    """How many columns identify a row."""
    seeds: tuple[tuple[str, int], ...]
    """The salts and seeds of a row's hashes."""
    tests: tuple[RowTest, ...]
    output: str
    handed: tuple[int, ...] = ()
    """The columns that are handed on as they are."""
    pipeline: FittedPipeline | None = None
    """What makes the inputs, where they are wanted."""
    in_bytes: bool = True
    """Whether inputs are the bytes of float32, not lists."""


def can_stack(rows: "DataFrame", inputs: InputPlan, settings: Prepare) -> bool:
    """Whether tasks can do all that is done to a row: its columns are no lists, nor texts that are cut into words.

    They compute hashes, too; those of long texts Spark finds faster.
    """
    types = {name: each.kind.simpleString() for name, each in require_columns(rows, settings.keys).items()}
    words = {name for stage in settings.stages if stage.kind in TEXT_STAGES for name in stage.columns}
    return (
        inputs.stages is not None
        and inputs.kind == "vector"
        and words.isdisjoint(inputs.raw_columns)
        and all(kind in _NUMBERS or _OTHERS.fullmatch(kind) for kind in inputs.raw_columns.values())
        and all(is_hashable(kind) for kind in [*inputs.raw_columns.values(), *types.values()])
        and PROBLEM not in rows.columns
    )


def stacked_problems(inputs: InputPlan, settings: Prepare) -> list[Problem]:
    """What tasks look for in the raw columns, in this order."""
    return [problem for _, _, problem in _stacked_problems(inputs, settings)]


def _stacked_problems(inputs: InputPlan, settings: Prepare) -> list[tuple[int, str, Problem]]:
    staged = _staged(settings)
    return [
        (place, what, problem)
        for place, name in enumerate(inputs.raw_columns)
        for what, problem in column_problems(name, inputs, name in staged)
    ]


def _staged(settings: Prepare) -> set[str]:
    return {column for stage in settings.stages for column in stage.columns}


def stacked(
    rows: RowReader,
    inputs: InputPlan,
    settings: Prepare,
    *,
    made_by: FittedPipeline | None = None,
    in_bytes: bool = True,
    with_raw: bool = False,
    with_names: bool = False,
) -> "DataFrame":
    """The rows with their hashes and the number of what is wrong with their inputs. Runs on the driver, lazily.

    The other columns that ``settings.keys`` names come along, and where they are wanted the inputs that a pipeline
    makes (zeros in rows that cannot be used), in the column of the dataset as the bytes of float32 or as lists, the raw
    columns, and the values by which errors name rows.
    """
    from pyspark.sql.types import ArrayType, BinaryType, FloatType, LongType, StructField, StructType

    content = content_columns(inputs, settings)
    read = [*content, *([NAMED] if with_names else [])]
    handed = [*(content if with_raw else settings.keys), *([NAMED] if with_names else [])]
    stack = _stack(inputs, settings)._replace(
        handed=tuple(read.index(name) for name in handed), pipeline=made_by, in_bytes=in_bytes
    )
    fields = [rows.schema[name] for name in handed]
    fields += [
        StructField(name, LongType()) for name in [CONTENT_HASH, *([DRAW] if draws_rows(settings) else []), FOUND]
    ]
    if made_by is not None:
        fields.append(StructField(inputs.column, BinaryType() if in_bytes else ArrayType(FloatType())))
    return rows.map(read, _stacker(stack, [each.name for each in fields]), StructType(fields))


def look_at_training(rows: RowReader, inputs: InputPlan, settings: Prepare, pipeline: UnfittedPipeline) -> "DataFrame":
    """What :func:`~sparkdl.data.preparing.fitting.look_at` finds of the training rows. Runs on the driver, lazily.

    All rows can be used, and each was drawn by itself, or its split is a column, so that its task knows it.
    """
    stack, begin = _stack(inputs, settings), begin_of_train(settings)
    content = content_columns(inputs, settings)
    given = content.index(settings.split.column) if settings.split.column else None

    def training(columns: Sequence[pa.Array]) -> list[pa.Array]:
        if given is None:
            _, draw = hash_rows(columns[: stack.identifying], stack.seeds)
            chosen = in_train(draw, begin)
        else:
            chosen = np.asarray(pc.equal(columns[given].cast(pa.string()), "train"))
        kept = columns[: len(stack.raw_columns)]
        return list(kept) if chosen.all() else [column.filter(pa.array(chosen)) for column in kept]

    def look_at_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return look((training(batch.columns) for batch in batches if len(batch)), stack.raw_columns, pipeline)

    return rows.map(content, look_at_batches, WHAT_ROWS_SAY)


def content_columns(inputs: InputPlan, settings: Prepare) -> list[str]:
    """The columns that identify a row, those that inputs are made from first."""
    return list(dict.fromkeys([*inputs.raw_columns, *settings.keys]))


def _stack(inputs: InputPlan, settings: Prepare) -> _Stack:
    seeds = [("content", 0), *([("split", settings.seed)] if draws_rows(settings) else [])]
    identifying = len(content_columns(inputs, settings))
    return _Stack(dict(inputs.raw_columns), identifying, tuple(seeds), row_tests(inputs, settings), inputs.column)


def row_tests(inputs: InputPlan, settings: Prepare) -> tuple[RowTest, ...]:
    """What a task has to look for, in the order of :func:`stacked_problems`."""
    staged = [name in _staged(settings) for name in inputs.raw_columns]
    found = enumerate(_stacked_problems(inputs, settings), 1)
    return tuple(RowTest(column, what, number, staged[column]) for number, (column, what, _) in found)


def _stacker(stack: _Stack, names: Sequence[str]) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def stack_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in filter(len, batches):
            yield pa.RecordBatch.from_arrays(_stacked(batch.columns, stack), names)

    return stack_batches


def _stacked(columns: Sequence[pa.Array], stack: _Stack) -> list[pa.Array]:
    hashes = hash_rows(columns[: stack.identifying], stack.seeds)
    found = np.zeros(len(columns[0]), np.int64)
    for test in stack.tests:
        rows = fails(columns[test.column], test)
        if rows is not None:
            found[rows & (found == 0)] = test.problem  # the first one is what a row is counted for
    made = [*(columns[place] for place in stack.handed), *map(pa.array, hashes), pa.array(found)]
    if stack.pipeline is None:
        return made
    inputs = columns[: len(stack.raw_columns)]
    matrix = _made(inputs, found == 0, stack.raw_columns, stack.pipeline, stack.output)
    return [*made, as_bytes(matrix) if stack.in_bytes else as_lists(matrix)]


def fails(column: pa.Array, test: RowTest) -> NDArray[np.bool_] | None:
    """The rows in which a test finds something; None for no rows."""
    if not pa.types.is_floating(column.type):
        return np.asarray(column.is_null()) if test.what == "missing" and column.null_count else None
    values = column.to_numpy(zero_copy_only=False)  # NaN where there is none
    if test.what == "missing":
        rows = np.isnan(values)
    else:
        with np.errstate(over="ignore"):
            rows = np.isinf(values if test.staged else values.astype(np.float32, copy=False))
    return rows if rows.any() else None


def _made(
    columns: Sequence[pa.Array],
    usable: NDArray[np.bool_],
    raw_columns: dict[str, str],
    pipeline: FittedPipeline,
    output: str,
) -> NDArray[np.float32]:
    """What the stages make, float32 of shape (rows, width); zeros in rows that cannot be used."""
    if not usable.any():
        return np.zeros((len(usable), 0), np.float32)
    kept = columns if usable.all() else [column.filter(pa.array(usable)) for column in columns]
    values = made_inputs(kept, raw_columns, pipeline, output)
    if usable.all():
        return values
    matrix = np.zeros((len(usable), values.shape[1]), np.float32)
    matrix[usable] = values
    return matrix


def made_inputs(
    columns: Sequence[pa.Array], raw_columns: dict[str, str], pipeline: FittedPipeline, output: str
) -> NDArray[np.float32]:
    """What the stages make of rows that can be used, float32 of shape (rows, width). Runs in a task."""
    made = pipeline.transform(fitted_columns(columns, raw_columns, pipeline.needs), output)
    assert not isinstance(made, pa.Array)
    return as_matrix(made)
