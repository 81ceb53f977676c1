"""What can be wrong with a row, whatever the others are: each thing with Spark's test for it, or with a task's."""

import math
from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from sparkdl.data.bad_rows import COUNT, Problem, what_is_wrong
from sparkdl.data.preparing.column_problems import column_problems
from sparkdl.data.preparing.decoding import decoding_problems
from sparkdl.data.preparing.features import InputPlan, image_fits, width_of
from sparkdl.data.preparing.label_column import label_problems
from sparkdl.data.preparing.split_columns import split_problems
from sparkdl.data.preparing.stacking import FOUND, stacked_problems
from sparkdl.data.sql import identifier
from sparkdl.settings import Prepare
from sparkdl.settings.section import TaskName

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["find_problems", "first_problem", "unusable"]

_A_WORD = r"(?U)\w"


def find_problems(
    rows: "DataFrame", inputs: InputPlan, settings: Prepare, task: TaskName | None, *, stacks: bool = False
) -> list[Problem]:
    """All that can be wrong with a row, whatever the others are: what comes first is what a row is counted for.

    Where tasks stack the inputs (:mod:`sparkdl.data.preparing.stacking`), they test these themselves.
    """
    problems = label_problems(rows, settings, task) + split_problems(rows, settings)
    problems += decoding_problems(rows, inputs)
    problems += stacked_problems(inputs, settings) if stacks else _input_problems(inputs, settings)
    if task is None:
        problems += _feature_problems(inputs)
    if settings.split.column:
        says = f"the split column {settings.split.column!r} is null in {COUNT} rows"
        problems.append(Problem(says, "name their split, drop them", _is_null(settings.split.column)))
    return problems


def first_problem(problems: Sequence[Problem]) -> "Column":
    """The number of the first problem that a row has, from 1, or 0. The row says which of its inputs it has found.

    ``problems`` are those of :func:`find_problems` with ``stacks``: the ones of inputs, which tasks look for, stand
    together and have no tests.
    """
    from pyspark.sql import functions as sf

    tested = [problem for problem in problems if problem.test is not None]
    before = next((place for place, problem in enumerate(problems) if problem.test is None), len(problems))
    other, found = what_is_wrong(tested), sf.col(FOUND)
    other = sf.when(other > before, other + (len(problems) - len(tested))).otherwise(other)
    found = sf.when(found > 0, found + before).otherwise(found)
    return sf.when(found == 0, other).when(other == 0, found).otherwise(sf.least(found, other)).cast("bigint")


def unusable(column: str, *, sparse: bool) -> Problem:
    """Inputs that preprocessing has made of a row, and that no network can learn from."""
    from pyspark.sql import functions as sf

    value = sf.col(identifier(column))
    values = (value["values"] if sparse else value).cast("array<float>")
    says = f"column {column!r} has {COUNT} rows with values that are NaN or infinite after preprocessing"
    return Problem(says, "add the stage `impute`, drop these rows", sf.exists(values, _is_nan) | _has_infinity(values))


def _feature_problems(inputs: InputPlan) -> list[Problem]:
    """Sparse rows that have nothing to learn from, whatever the training rows are."""
    from pyspark.sql import functions as sf

    columns = [sf.col(identifier(name)) for name in inputs.raw_columns]
    names = ", ".join(map(repr, inputs.raw_columns))
    if all(kind == "string" for kind in inputs.raw_columns.values()):
        # Joined by `concat`, columns are null where one of them is, and those rows have been found already.
        blank = sf.coalesce(~sf.concat(*columns).rlike(_A_WORD), sf.lit(False))
        return [Problem(f"{COUNT} rows have no word in {names}", "drop them", blank)]
    if set(inputs.raw_columns.values()) == {"vector"}:
        values = [sf.unwrap_udt(column)["values"] for column in columns]
        features = [sf.exists(value, lambda one: one != 0) for value in values]
        empty = ~reduce(or_, [sf.coalesce(feature, sf.lit(True)) for feature in features])
        return [Problem(f"{COUNT} rows have no feature in {names} that is not zero", "drop them", empty)]
    return []


def _input_problems(inputs: InputPlan, settings: Prepare) -> list[Problem]:
    """What can be wrong with the raw columns that inputs are made from."""
    if inputs.parts:
        found = {
            problem.says: problem
            for name, part in inputs.parts.items()
            for problem in _input_problems(part.plan, settings.of_input(name))
        }
        return list(found.values())
    if inputs.shape:
        return _image_problems(inputs, inputs.shape)
    staged = {column for stage in settings.stages for column in stage.columns}
    return [problem for name in inputs.raw_columns for problem in _column_problems(name, inputs, name in staged)]


def _image_problems(inputs: InputPlan, shape: Sequence[int]) -> list[Problem]:
    from pyspark.sql import functions as sf

    value, is_struct = sf.col(identifier(inputs.source)), inputs.raw_columns[inputs.source].startswith("struct")
    pixels = value["data"] if is_struct else value
    fits = sf.length(pixels) == sf.lit(math.prod(shape))
    if is_struct:
        fits &= image_fits(value, shape)
    column, expected = f"column {inputs.source!r}", " x ".join(map(str, shape))
    return [
        Problem(f"{column} has {COUNT} rows without an image", "drop them", pixels.isNull()),
        Problem(f"{column} has {COUNT} images that are not {expected} bytes", "give all of them one size", ~fits),
    ]


def _column_problems(name: str, inputs: InputPlan, is_staged: bool) -> list[Problem]:
    """What can be wrong with a raw column, with Spark's tests for it.

    A test that is null (because the row is) found nothing; the test for null did, or a stage takes care of it.
    """
    from pyspark.sql import functions as sf

    kind, value = inputs.raw_columns[name], sf.col(identifier(name))
    numbers: Column | None = None
    if kind == "vector":
        numbers = sf.unwrap_udt(value)["values"]
    elif kind.startswith("array"):
        numbers = value.cast("array<double>")
    missing, infinite = _is_null(name), sf.lit(False)
    if numbers is not None:
        missing |= sf.exists(numbers, lambda one: one.isNull() | sf.isnan(one))
        infinite = _has_infinity(numbers if is_staged else numbers.cast("array<float>"))
    elif kind in ("float", "double"):
        missing |= sf.isnan(value)
        infinite = sf.abs(value if is_staged else value.cast("float")) == math.inf
    tests = {"missing": missing, "infinite": sf.coalesce(infinite, sf.lit(False))}
    if name in inputs.widths:
        tests["width"] = sf.coalesce(width_of(value, kind) != inputs.widths[name], sf.lit(False))
    return [problem._replace(test=tests[what]) for what, problem in column_problems(name, inputs, is_staged)]


def _is_null(name: str) -> "Column":
    from pyspark.sql import functions as sf

    return sf.col(identifier(name)).isNull()


def _is_nan(value: "Column") -> "Column":
    from pyspark.sql import functions as sf

    return sf.isnan(value)


def _has_infinity(values: "Column") -> "Column":
    from pyspark.sql import functions as sf

    return sf.exists(values, lambda one: sf.abs(one) == math.inf)
