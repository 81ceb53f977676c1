"""Raw columns become one value a row in a task, with the row's hashes and what is wrong with it.

Spark's own plan has an expression, and code, for each of these things and every column.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkdl.data.bad_rows import NAMED, PROBLEM, WRONG, Problem, what_is_wrong
from sparkdl.data.preparing.column_problems import column_problems
from sparkdl.data.preparing.draw import DRAW, GIVEN, begin_of_train, in_train, with_order
from sparkdl.data.preparing.features import Inputs
from sparkdl.data.preparing.fitting import FOUND, fitted_columns, look
from sparkdl.data.preparing.label_column import LABEL, WEIGHT
from sparkdl.data.preparing.order import CONTENT_HASH
from sparkdl.data.preparing.row_hashes import hash_rows, is_hashable
from sparkdl.data.preparing.stages import TEXT_STAGES
from sparkdl.data.preparing.transform import as_bytes, as_lists
from sparkdl.data.sql import by_place
from sparkdl.preprocessing import FittedPipeline, UnfittedPipeline, as_matrix
from sparkdl.settings import Prepare

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["can_stack", "look_at_training", "stacked", "stacked_problems"]

_NUMBERS = {"boolean", "tinyint", "smallint", "int", "bigint", "float", "double"}
_OTHERS = re.compile(r"string|date|timestamp|timestamp_ntz|decimal\(.*\)")


class _Test(NamedTuple):
    """Something that a task looks for in a raw column."""

    column: int
    what: str
    """``missing`` or ``infinite``."""
    problem: int
    """Its number among all problems."""
    staged: bool
    """Whether stages take the numbers, which may be beyond float32 then."""


class _Stack(NamedTuple):
    """What a task has to know. Columns are known by their places: the inputs, the keys, and what is handed on."""

    raw_columns: dict[str, str]
    keys: int
    seeds: tuple[tuple[str, int], ...]
    """The salts and seeds of a row's hashes."""
    numbers: tuple[int, ...]
    """Which problem is meant by the numbers that come with rows; the first is that of none."""
    tests: tuple[_Test, ...]
    output: str
    with_raw: bool = False
    pipeline: FittedPipeline | None = None
    """What makes the inputs, where they are wanted."""
    in_bytes: bool = True
    """Whether inputs are the bytes of float32, not lists."""


def can_stack(rows: "DataFrame", inputs: Inputs, settings: Prepare) -> bool:
    """Whether tasks can do all that is done to a row: its columns are no lists, nor texts that are cut into words.

    They compute hashes, too; those of long texts Spark finds faster.
    """
    types = {column.name: column.dataType.simpleString() for column in rows.schema}
    words = {name for stage in settings.stages if stage.kind in TEXT_STAGES for name in stage.columns}
    return (
        inputs.stages is not None
        and inputs.kind == "vector"
        and words.isdisjoint(inputs.raw_columns)
        and all(kind in _NUMBERS or _OTHERS.fullmatch(kind) for kind in inputs.raw_columns.values())
        and all(is_hashable(types[key]) for key in [*inputs.raw_columns, *settings.keys])
        and PROBLEM not in rows.columns
    )


def stacked_problems(inputs: Inputs, settings: Prepare) -> list[Problem]:
    """What tasks look for in the raw columns, in this order."""
    return [problem for _, _, problem in _stacked_problems(inputs, settings)]


def _stacked_problems(inputs: Inputs, settings: Prepare) -> list[tuple[int, str, Problem]]:
    staged = _staged(settings)
    return [
        (place, what, problem)
        for place, name in enumerate(inputs.raw_columns)
        for what, problem in column_problems(name, inputs, name in staged)
    ]


def _staged(settings: Prepare) -> set[str]:
    return {column for stage in settings.stages for column in stage.columns}


def stacked(
    rows: "DataFrame",
    inputs: Inputs,
    settings: Prepare,
    problems: Sequence[Problem],
    *,
    made_by: FittedPipeline | None = None,
    in_bytes: bool = True,
    with_raw: bool = False,
    with_names: bool = False,
) -> "DataFrame":
    """The rows with their hashes and the number of what is wrong with them. Runs on the driver, lazily.

    ``rows`` have their label, their weight where there are such, and what :func:`with_hashes` asks of them. The inputs
    that a pipeline makes (zeros in rows that cannot be used), in the column of the dataset as the bytes of float32 or
    as lists, the raw columns, and the values by which errors name rows come along where they are wanted.
    """
    from pyspark.sql.types import ArrayType, BinaryType, FloatType, LongType, StructField, StructType

    handed = [*_handed(rows, settings), *([NAMED] if with_names else [])]
    read, stack = _read(rows, inputs, settings, problems, handed)
    made = [CONTENT_HASH, *([] if DRAW in handed else [DRAW]), WRONG]
    kept = [*inputs.raw_columns, *_other_keys(inputs, settings)] if with_raw else []
    fields = [rows.schema[name] for name in [*kept, *handed]]
    fields += [StructField(name, LongType()) for name in made]
    if made_by is not None:
        fields.append(StructField(inputs.column, BinaryType() if in_bytes else ArrayType(FloatType())))
    stack = stack._replace(with_raw=with_raw, pipeline=made_by, in_bytes=in_bytes)
    return with_order(read.mapInArrow(_stacker(stack, [each.name for each in fields]), StructType(fields)), settings)


def look_at_training(
    rows: "DataFrame", inputs: Inputs, settings: Prepare, problems: Sequence[Problem], pipeline: UnfittedPipeline
) -> "DataFrame":
    """What :func:`~sparkdl.data.preparing.fitting.look_at` finds of the training rows. Runs on the driver, lazily.

    ``rows`` are as for :func:`stacked`; each must be drawn by itself and differ from all others, so that its task knows
    which split it is of.
    """
    handed = [name for name in (GIVEN, DRAW) if name in rows.columns]
    read, stack = _read(rows, inputs, settings, problems, handed)
    begin = begin_of_train(settings)

    def training(columns: Sequence[pa.Array]) -> list[pa.Array]:
        hashed = len(stack.raw_columns) + stack.keys
        given = dict(zip(handed, columns[hashed + 1 :], strict=True))
        hashes, wrong = _judged(columns, stack)
        draw = given[DRAW].to_numpy() if DRAW in given else hashes[1]
        chosen = (wrong == 0) & in_train(draw, given.get(GIVEN), begin)
        kept = columns[: len(stack.raw_columns)]
        return list(kept) if chosen.all() else [column.filter(pa.array(chosen)) for column in kept]

    def look_at_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return look((training(batch.columns) for batch in batches if len(batch)), stack.raw_columns, pipeline)

    return read.mapInArrow(look_at_batches, FOUND)


def _handed(rows: "DataFrame", settings: Prepare) -> list[str]:
    """What a task hands on of each row as it is."""
    given = [name for name in (GIVEN, DRAW) if name in rows.columns]
    return [LABEL, *([WEIGHT] if settings.weight else []), *given]


def _other_keys(inputs: Inputs, settings: Prepare) -> list[str]:
    """Columns that identify a row beside those that inputs are made from."""
    return list(dict.fromkeys(name for name in settings.keys if name not in inputs.raw_columns))


def _read(
    rows: "DataFrame", inputs: Inputs, settings: Prepare, problems: Sequence[Problem], handed: Sequence[str]
) -> "tuple[DataFrame, _Stack]":
    """The columns that a task reads, and what it has to know of them."""
    keys = _other_keys(inputs, settings)
    tested = [place for place, problem in enumerate(problems, 1) if problem.test is not None]
    found = _stacked_problems(inputs, settings)
    others = [place for place, problem in enumerate(problems, 1) if problem.test is None]
    staged = [name in _staged(settings) for name in inputs.raw_columns]
    tests = [_Test(column, what, place, staged[column]) for place, (column, what, _) in zip(others, found, strict=True)]
    wrong = what_is_wrong([problems[place - 1] for place in tested])
    seeds = [("content", 0), *([] if DRAW in handed else [("split", settings.seed)])]
    stack = _Stack(dict(inputs.raw_columns), len(keys), tuple(seeds), (0, *tested), tuple(tests), inputs.column)
    return by_place(rows, [*inputs.raw_columns, *keys, wrong, *handed]), stack


def _stacker(stack: _Stack, names: Sequence[str]) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def stack_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in filter(len, batches):
            yield pa.RecordBatch.from_arrays(_stacked(batch.columns, stack), names)

    return stack_batches


def _judged(columns: Sequence[pa.Array], stack: _Stack) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The hashes of rows, and what is wrong with each."""
    hashed = len(stack.raw_columns) + stack.keys
    hashes = hash_rows(columns[:hashed], stack.seeds)
    wrong = np.array(stack.numbers)[columns[hashed].to_numpy()]
    found = np.zeros(len(wrong), np.int64)
    for test in stack.tests:
        rows = _fails(columns[test.column], test)
        if rows is not None:
            found[rows & (found == 0)] = test.problem
    # What comes first in the list of problems is what a row is counted for.
    return hashes, np.where((found > 0) & ((wrong == 0) | (wrong > found)), found, wrong)


def _stacked(columns: Sequence[pa.Array], stack: _Stack) -> list[pa.Array]:
    inputs = len(stack.raw_columns)
    hashed = inputs + stack.keys
    hashes, wrong = _judged(columns, stack)
    raw = columns[:hashed] if stack.with_raw else []
    made = [*raw, *columns[hashed + 1 :], *map(pa.array, hashes), pa.array(wrong)]
    if stack.pipeline is None:
        return made
    matrix = _made(columns[:inputs], wrong == 0, stack.raw_columns, stack.pipeline, stack.output)
    return [*made, as_bytes(matrix) if stack.in_bytes else as_lists(matrix)]


def _fails(column: pa.Array, test: _Test) -> NDArray[np.bool_] | None:
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
    made = pipeline.transform(fitted_columns(kept, raw_columns, pipeline.needs), output)
    assert not isinstance(made, pa.Array)
    values = as_matrix(made)
    if usable.all():
        return values
    matrix = np.zeros((len(usable), values.shape[1]), np.float32)
    matrix[usable] = values
    return matrix
