"""The column of labels: its task, the working columns that are made from it, and its possible problems."""

from typing import TYPE_CHECKING

from sparkdl.data.bad_rows import COUNT, Problem
from sparkdl.data.sql import identifier
from sparkdl.data.working_columns import WORKING
from sparkdl.errors import DataError
from sparkdl.settings import Prepare
from sparkdl.settings.section import TaskName

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

__all__ = [
    "LABEL",
    "NUMBERS_FOR",
    "WEIGHT",
    "find_task",
    "label_problems",
    "label_type",
    "working_label",
    "working_weight",
]

LABEL = f"{WORKING}label"
"""The working column of labels: names of classes, arrays of them, or numbers."""
WEIGHT = f"{WORKING}weight"
"""The working column of weights."""
LARGEST_RELEVANCE = 31
"""The largest relevance for ranking, as in xgboost with exponential gain."""
NUMBERS_FOR = {
    "regression": "regression predicts a number",
    "ranking": "ranking orders rows by how relevant they are, a number",
}
"""The tasks whose labels are numbers, with an explanation for errors."""


def find_task(rows: "DataFrame", settings: Prepare) -> TaskName | None:
    """The task of the labels; None if ``sparse`` rows are for very many classes.

    Runs on the driver. If labels are floating-point numbers, tasks look for fractions, because whole numbers may be
    classes. Raises :class:`DataError` for labels of a type that fits no task, or not the task of the settings.
    """
    from pyspark.sql.types import ArrayType, BooleanType, DateType, NumericType, StringType

    if settings.task == "language_modelling":
        return settings.task
    label, kind = settings.label, rows.schema[settings.label].dataType
    element = kind.elementType if isinstance(kind, ArrayType) else kind
    is_list, is_number = isinstance(kind, ArrayType), isinstance(kind, NumericType)
    if not isinstance(element, NumericType | StringType | BooleanType | DateType):
        raise DataError(
            f"the label column {label!r} is {kind.simpleString()}, which fits no task: classification needs whole"
            " numbers, strings, truth values or dates, multi_label arrays of them, regression and ranking numbers"
        )
    if settings.task is None:
        if settings.sparse:
            return None
        found: TaskName = "multi_label" if is_list else "classification"
        return "regression" if _has_fractions(rows, label, kind) else found
    if settings.task in NUMBERS_FOR and not is_number:
        raise DataError(f"the label column {label!r} is {kind.simpleString()}, but {NUMBERS_FOR[settings.task]}")
    if (settings.task == "multi_label") != is_list:
        several = "arrays of labels" if settings.task == "multi_label" else "one label per row"
        raise DataError(f"the label column {label!r} is {kind.simpleString()}, but {settings.task} needs {several}")
    return settings.task


def label_type(rows: "DataFrame", settings: Prepare, task: TaskName | None) -> str | None:
    """The Spark SQL type of a label, in which predictions are returned; None if labels are not classes."""
    from pyspark.sql.types import ArrayType

    if task in NUMBERS_FOR or task == "language_modelling":
        return None
    kind = rows.schema[settings.label].dataType
    return (kind.elementType if isinstance(kind, ArrayType) else kind).simpleString()


def working_label(rows: "DataFrame", settings: Prepare, task: TaskName | None) -> "Column":
    """A row's label, or null: the name of its class, the array of its distinct names, or a double.

    0 for language modelling, where the rows' own tokens are their labels.
    """
    from pyspark.sql import functions as sf
    from pyspark.sql.types import ArrayType

    if task == "language_modelling":
        return sf.lit(0).cast("bigint")
    kind, value = rows.schema[settings.label].dataType, sf.col(identifier(settings.label))
    if task in NUMBERS_FOR:
        return value.cast("double")
    if isinstance(kind, ArrayType):
        element = kind.elementType
        return sf.array_distinct(sf.transform(value, lambda one: _as_name(one, element)))
    name = _as_name(value, kind)
    return name if task == "classification" else sf.when(name.isNotNull(), sf.array(name))


def working_weight(rows: "DataFrame", settings: Prepare) -> "Column":
    """A row's weight. Raises :class:`DataError` for a column that does not hold numbers."""
    from pyspark.sql import functions as sf
    from pyspark.sql.types import NumericType

    kind = rows.schema[str(settings.weight)].dataType
    if not isinstance(kind, NumericType):
        raise DataError(f"the weight column {settings.weight!r} is {kind.simpleString()}; weights are numbers")
    return sf.col(identifier(str(settings.weight))).cast("double")


def label_problems(rows: "DataFrame", settings: Prepare, task: TaskName | None) -> list[Problem]:
    """The problems that label, weight and group of a row can have."""
    from pyspark.sql import functions as sf
    from pyspark.sql.types import ArrayType, DoubleType, FloatType

    if task == "language_modelling":
        return []
    column = f"the label column {settings.label!r}"
    value, kind = sf.col(LABEL), rows.schema[settings.label].dataType
    problems = [Problem(f"{column} is null in {COUNT} rows", "drop or label them", value.isNull())]
    if isinstance(kind, ArrayType):
        has_null = sf.exists(value, lambda one: one.isNull())
        problems.append(Problem(f"{column} has {COUNT} rows with a null among their labels", "remove it", has_null))
        if task is None:
            says = f"{column} has {COUNT} rows with an empty set of labels"
            problems.append(Problem(says, "drop or label them", sf.size(value) == 0))
    if task == "ranking":
        wrong = sf.isnan(value) | (value < 0) | (value > LARGEST_RELEVANCE)
        says = f"{column} is NaN, negative or above {LARGEST_RELEVANCE} in {COUNT} rows"
        remedy = (
            f"a relevance must be from 0 to {LARGEST_RELEVANCE}, as its gain is 2^relevance - 1: correct these labels,"
            " drop the rows"
        )
        problems.append(Problem(says, remedy, wrong))
        nameless = sf.col(identifier(str(settings.qid))).isNull()
        says = f"the column {settings.qid!r} is null in {COUNT} rows"
        problems.append(Problem(says, "set their group, drop them", nameless))
    elif task == "regression":
        if isinstance(kind, FloatType | DoubleType):
            problems.append(Problem(f"{column} is NaN or infinite in {COUNT} rows", "drop them", ~_is_finite(value)))
    elif _is_fractional_type(kind):
        says = f"{column} has {COUNT} rows that are not whole numbers"
        fractional = _is_fractional(settings.label, kind)
        problems.append(Problem(says, "bin them first, set `task: regression`", fractional))
    if settings.weight:
        weight = sf.col(WEIGHT)
        says = f"the weight column {settings.weight!r} is negative, infinite or null in {COUNT} rows"
        wrong = weight.isNull() | ~_is_finite(weight) | (weight < 0)
        problems.append(Problem(says, "weights must be at least 0: correct them, drop the rows", wrong))
    # A test that is null, because the row is, counts as false: the test for null has found it.
    return [
        problem._replace(test=sf.coalesce(problem.test, sf.lit(False)))
        for problem in problems
        if problem.test is not None
    ]


def _as_name(value: "Column", kind: "DataType") -> "Column":
    """A label as text; a floating-point number becomes a whole number."""
    from pyspark.sql import functions as sf

    if not _is_fractional_type(kind):
        return value.cast("string")
    return sf.when(~sf.isnan(value.cast("double")), value.cast("bigint").cast("string"))


def _has_fractions(rows: "DataFrame", label: str, kind: "DataType") -> bool:
    from pyspark.sql.types import ArrayType

    if isinstance(kind, ArrayType) or not _is_fractional_type(kind):
        return False
    return bool(rows.where(_is_fractional(label, kind)).select(identifier(label)).head(1))


def _is_fractional_type(kind: "DataType") -> bool:
    """Whether a type, or the type of an array's elements, may have fractions."""
    from pyspark.sql.types import ArrayType, DecimalType, DoubleType, FloatType

    element = kind.elementType if isinstance(kind, ArrayType) else kind
    return isinstance(element, FloatType | DoubleType | DecimalType)


def _is_fractional(label: str, kind: "DataType") -> "Column":
    """Whether a label, or one of several, has a fraction."""
    from pyspark.sql import functions as sf
    from pyspark.sql.types import ArrayType

    def fractional(one: "Column") -> "Column":
        number = one.cast("double")
        return number.isNotNull() & ~sf.isnan(number) & (number != number.cast("bigint"))

    value = sf.col(identifier(label))
    return sf.exists(value, fractional) if isinstance(kind, ArrayType) else fractional(value)


def _is_finite(value: "Column") -> "Column":
    from pyspark.sql import functions as sf

    return ~sf.isnan(value) & (sf.abs(value) < float("inf"))
