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
from sparkdl.data.preparing.draw import DRAW, GIVEN, with_order
from sparkdl.data.preparing.features import Inputs
from sparkdl.data.preparing.fitting import fitted_columns
from sparkdl.data.preparing.label_column import LABEL, WEIGHT
from sparkdl.data.preparing.order import CONTENT_HASH
from sparkdl.data.preparing.row_hashes import hash_rows, is_hashable
from sparkdl.data.preparing.stages import TEXT_STAGES
from sparkdl.data.preparing.transform import as_bytes, as_lists
from sparkdl.data.sql import by_place
from sparkdl.preprocessing import FittedPipeline, as_matrix
from sparkdl.settings import Prepare

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["can_stack", "stacked", "stacked_problems"]

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
    with_raw: bool
    pipeline: FittedPipeline | None
    """What makes the inputs, where they are wanted."""
    output: str
    in_bytes: bool
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

    content = list(dict.fromkeys([*inputs.raw_columns, *settings.keys]))
    keys = content[len(inputs.raw_columns) :]
    tested = [place for place, problem in enumerate(problems, 1) if problem.test is not None]
    found = _stacked_problems(inputs, settings)
    others = [place for place, problem in enumerate(problems, 1) if problem.test is None]
    staged = [name in _staged(settings) for name in inputs.raw_columns]
    tests = [_Test(column, what, place, staged[column]) for place, (column, what, _) in zip(others, found, strict=True)]
    handed = [LABEL, *([WEIGHT] if settings.weight else []), *(name for name in (GIVEN, DRAW) if name in rows.columns)]
    handed += [NAMED] if with_names else []
    wrong = what_is_wrong([problems[place - 1] for place in tested])
    read = by_place(rows, [*content, wrong, *handed])
    made = [CONTENT_HASH, *([] if DRAW in handed else [DRAW]), WRONG]
    fields = [rows.schema[name] for name in [*(content if with_raw else []), *handed]]
    fields += [StructField(name, LongType()) for name in made]
    if made_by is not None:
        fields.append(StructField(inputs.column, BinaryType() if in_bytes else ArrayType(FloatType())))
    seeds = [("content", 0), *([("split", settings.seed)] if DRAW in made else [])]
    stack = _Stack(
        dict(inputs.raw_columns),
        len(keys),
        tuple(seeds),
        (0, *tested),
        tuple(tests),
        with_raw,
        made_by,
        inputs.column,
        in_bytes,
    )
    return with_order(read.mapInArrow(_stacker(stack, [each.name for each in fields]), StructType(fields)), settings)


def _stacker(stack: _Stack, names: Sequence[str]) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def stack_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in filter(len, batches):
            yield pa.RecordBatch.from_arrays(_stacked(batch.columns, stack), names)

    return stack_batches


def _stacked(columns: Sequence[pa.Array], stack: _Stack) -> list[pa.Array]:
    inputs = len(stack.raw_columns)
    hashed = inputs + stack.keys
    hashes = hash_rows(columns[:hashed], stack.seeds)
    wrong = np.array(stack.numbers)[columns[hashed].to_numpy()]
    found = np.zeros(len(wrong), np.int64)
    for test in stack.tests:
        rows = _fails(columns[test.column], test)
        if rows is not None:
            found[rows & (found == 0)] = test.problem
    # What comes first in the list of problems is what a row is counted for.
    wrong = np.where((found > 0) & ((wrong == 0) | (wrong > found)), found, wrong)
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
