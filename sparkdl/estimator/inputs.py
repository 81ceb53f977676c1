"""Turns the columns of a DataFrame into those that :func:`sparkdl.prepare` and :func:`sparkdl.score` read.

Runs on the driver, lazily. Columns that cannot be used raise an error here, before any job starts.
"""

from collections.abc import Sequence

from pyspark.ml.feature import VectorAssembler
from pyspark.ml.functions import array_to_vector, vector_to_array
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import Column, DataFrame
from pyspark.sql.functions import array, col, concat, lit, when
from pyspark.sql.types import ArrayType, BooleanType, DataType, NumericType, StringType

from sparkdl.data.preparing.label_column import NUMBERS_FOR
from sparkdl.data.preparing.queries import NAMED_BY, name_types
from sparkdl.data.raw_columns import find_column, listed, select_columns, with_neighbours
from sparkdl.data.sql import identifier
from sparkdl.data.working_columns import WORKING
from sparkdl.errors import DataError
from sparkdl.settings.section import TaskName

__all__ = [
    "FEATURES",
    "LABEL",
    "NAMED_SPLIT",
    "QID",
    "SPLIT",
    "WEIGHT",
    "check_label",
    "feature_kinds",
    "rows_by_name",
    "training_rows",
]

FEATURES, LABEL, WEIGHT, SPLIT, QID = "features", "label", "weight", "split", "qid"
"""The names of the columns in the prepared dataset."""
NAMED_SPLIT = "sparkdl_split"
"""The name of the split column if inputs have names; all other columns keep theirs then."""


def feature_kinds(rows: DataFrame, columns: Sequence[str], *, sparse: bool) -> dict[str, str]:
    """How a scoring task reads each column: ``vector`` for vectors and lists, ``double`` or ``float`` for numbers.

    Raises :class:`DataError` for a column that is missing, or holds neither numbers nor vectors nor arrays of numbers.
    """
    number = "double" if sparse else "float"
    kinds = _check_features(rows, columns)
    return {name: "vector" if isinstance(kind, VectorUDT | ArrayType) else number for name, kind in kinds.items()}


def training_rows(
    rows: DataFrame,
    features: Sequence[str],
    label: str,
    *,
    sparse: bool,
    weight: str | None,
    validation: str | None,
    qid: str | None,
) -> DataFrame:
    """The columns ``features`` and ``label``, and ``weight``, ``split`` and ``qid`` if they are given.

    ``validation`` is a column of truth values: true for rows that are held out to decide which epoch was best.
    Raises :class:`DataError` for any column that is missing or of an unsuitable type.
    """
    _check_features(rows, features)
    if weight is not None:
        _expect(rows, weight, "weightCol", NumericType, "a weight is a number")
    if validation is not None:
        _expect(rows, validation, "validationIndicatorCol", BooleanType, "true for rows to validate with, else false")
    if qid is not None:
        _expect(rows, qid, "qidCol", name_types(), NAMED_BY)
    chosen = select_columns(rows, [*features, *filter(None, [label, weight, validation, qid])])
    kept = [_of(name).alias(called) for called, name in ((LABEL, label), (WEIGHT, weight), (QID, qid)) if name]
    if validation is not None:
        kept.append(when(_of(validation), lit("validation")).otherwise(lit("train")).alias(SPLIT))
    return _assembled(chosen, features, kept, sparse=sparse)


def rows_by_name(
    rows: DataFrame, inputs: Sequence[str], label: str, *, weight: str | None, validation: str | None
) -> DataFrame:
    """The columns of named inputs, the label and the weight unchanged, and the split if ``validation`` is given.

    Raises :class:`DataError` for columns that are missing. :func:`sparkdl.prepare` checks the types of inputs.
    """
    if weight is not None:
        _expect(rows, weight, "weightCol", NumericType, "a weight is a number")
    chosen = select_columns(rows, list(dict.fromkeys([*inputs, *filter(None, [label, weight, validation])])))
    if validation is None:
        return chosen
    _expect(rows, validation, "validationIndicatorCol", BooleanType, "true for rows to validate with, else false")
    split = when(_of(validation), lit("validation")).otherwise(lit("train"))
    return chosen.withColumn(NAMED_SPLIT, split)


def check_label(rows: DataFrame, column: str, task: TaskName) -> None:
    """Raise :class:`DataError` unless labels are numbers, or, for classification, texts or truth values."""
    kinds = NumericType if task in NUMBERS_FOR else (NumericType, StringType, BooleanType)
    what = NUMBERS_FOR.get(task, "a class is a whole number, a text or a truth value")
    _expect(rows, column, "labelCol", kinds, what)


def _of(name: str) -> Column:
    return col(identifier(name))


def _assembled(rows: DataFrame, columns: Sequence[str], kept: Sequence[Column], *, sparse: bool) -> DataFrame:
    """The columns that are kept, and ``features``."""
    alone = len(columns) == 1
    values = [_vector(rows, name, alone=alone) if sparse else _array(rows, name) for name in columns]
    if not sparse or len(values) == 1:
        features = values[0] if len(values) == 1 else concat(*values)
        return rows.select(*kept, features.alias(FEATURES))
    parts = [f"{WORKING}{number}" for number in range(len(values))]
    apart = rows.select(*kept, *[value.alias(part) for value, part in zip(values, parts, strict=True)])
    return VectorAssembler(inputCols=parts, outputCol=FEATURES, handleInvalid="keep").transform(apart).drop(*parts)


def _array(rows: DataFrame, name: str) -> Column:
    value, kind = _of(name), rows.schema[name].dataType
    if isinstance(kind, VectorUDT):
        return vector_to_array(value, "float32")
    return value if isinstance(kind, ArrayType) else array(value.cast("float"))


def _vector(rows: DataFrame, name: str, *, alone: bool) -> Column:
    """A column as vectors. Numbers beside other columns stay numbers: the assembler takes them as they are."""
    value, kind = _of(name), rows.schema[name].dataType
    if isinstance(kind, VectorUDT) or (isinstance(kind, NumericType | BooleanType) and not alone):
        return value
    return array_to_vector((value if isinstance(kind, ArrayType) else array(value)).cast("array<double>"))


def _check_features(rows: DataFrame, columns: Sequence[str]) -> dict[str, DataType]:
    """The types of the columns."""
    kinds: dict[str, DataType] = {}
    wanted = "a vector, an array of numbers or a number"
    for name in columns:
        kind = kinds[name] = _expect(rows, name, "featuresCol", DataType, wanted)
        is_array = isinstance(kind, ArrayType) and isinstance(kind.elementType, NumericType)
        if not (is_array or isinstance(kind, VectorUDT | NumericType | BooleanType)):
            raise DataError(f"the column {name!r} (featuresCol) is {kind.simpleString()}; it must be {wanted}")
    return kinds


def _expect(
    rows: DataFrame, name: str, parameter: str, kinds: type[DataType] | tuple[type[DataType], ...], what: str
) -> DataType:
    found = find_column(rows.schema, name)
    if found is None:
        names = with_neighbours([name], rows.schema)
        raise DataError(f"there is no column {names} ({parameter}); there are {listed(rows.columns)}")
    if not isinstance(found.kind, kinds):
        raise DataError(f"the column {name!r} ({parameter}) is {found.kind.simpleString()}: {what}")
    return found.kind
