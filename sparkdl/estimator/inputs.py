"""From the columns that a DataFrame has to those that :func:`sparkdl.prepare` and :func:`sparkdl.score` read.

Runs on the driver, lazily. What cannot work is an error here, before anything starts.
"""

from collections.abc import Sequence

from pyspark.ml.feature import VectorAssembler
from pyspark.ml.functions import array_to_vector, vector_to_array
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import Column, DataFrame
from pyspark.sql.functions import array, col, concat, lit, struct, when
from pyspark.sql.types import ArrayType, BooleanType, DataType, NumericType, StringType

from sparkdl.data.preparing.label_column import NUMBERS_FOR
from sparkdl.data.preparing.queries import NAMED_BY, name_types
from sparkdl.data.sql import identifier
from sparkdl.data.working_columns import WORKING
from sparkdl.errors import DataError
from sparkdl.settings.section import TaskName

__all__ = ["FEATURES", "LABEL", "QID", "ROW", "SPLIT", "WEIGHT", "check_label", "training_rows", "with_features"]

FEATURES, LABEL, WEIGHT, SPLIT, QID = "features", "label", "weight", "split", "qid"
"""What the columns are called in the prepared dataset."""
ROW = "row"
"""What holds all columns of the DataFrame, so that none of them can clash with those."""


def with_features(rows: DataFrame, columns: Sequence[str], *, sparse: bool) -> DataFrame:
    """The columns ``row``, which holds all there were, and ``features``: arrays of numbers, or with ``sparse`` vectors.

    Raises :class:`DataError` for a column that is missing, or holds neither numbers nor vectors nor arrays of numbers.
    """
    for name in columns:
        _check_feature(rows, name, alone=len(columns) == 1)
    values = [_vector(rows, name) if sparse else _array(rows, name) for name in columns]
    if not sparse or len(values) == 1:
        features = values[0] if len(values) == 1 else concat(*values)
        return rows.select(struct("*").alias(ROW), features.alias(FEATURES))
    parts = [f"{WORKING}{number}" for number in range(len(values))]
    apart = rows.select(struct("*").alias(ROW), *[value.alias(part) for value, part in zip(values, parts, strict=True)])
    assembled = VectorAssembler(inputCols=parts, outputCol=FEATURES, handleInvalid="keep").transform(apart)
    return assembled.select(ROW, FEATURES)


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
    """The columns ``features`` and ``label``, and where they are given ``weight``, ``split`` and ``qid``.

    ``validation`` is a column of truth values that says which rows decide which epoch was best.
    Raises :class:`DataError` as :func:`with_features` does, and for the other columns.
    """
    chosen = [_of_row(label).alias(LABEL)]
    if weight is not None:
        _expect(rows, weight, "weightCol", NumericType, "a weight is a number")
        chosen.append(_of_row(weight).alias(WEIGHT))
    if validation is not None:
        _expect(rows, validation, "validationIndicatorCol", BooleanType, "true for rows to validate with, else false")
        chosen.append(when(_of_row(validation), lit("validation")).otherwise(lit("train")).alias(SPLIT))
    if qid is not None:
        _expect(rows, qid, "qidCol", name_types(), NAMED_BY)
        chosen.append(_of_row(qid).alias(QID))
    return with_features(rows, features, sparse=sparse).select(FEATURES, *chosen)


def check_label(rows: DataFrame, column: str, task: TaskName) -> DataType:
    """The type of the labels. Raises :class:`DataError` unless they are numbers, or, for classification, texts."""
    kinds = NumericType if task in NUMBERS_FOR else (NumericType, StringType, BooleanType)
    what = NUMBERS_FOR.get(task, "a class is a whole number, a text or a truth value")
    return _expect(rows, column, "labelCol", kinds, what)


def _of_row(name: str) -> Column:
    return col(f"{ROW}.{identifier(name)}")


def _array(rows: DataFrame, name: str) -> Column:
    value, kind = col(identifier(name)), rows.schema[name].dataType
    if isinstance(kind, VectorUDT):
        return vector_to_array(value, "float32")
    return value if isinstance(kind, ArrayType) else array(value.cast("float"))


def _vector(rows: DataFrame, name: str) -> Column:
    value, kind = col(identifier(name)), rows.schema[name].dataType
    return array_to_vector(value.cast("array<double>")) if isinstance(kind, ArrayType) else value


def _check_feature(rows: DataFrame, name: str, *, alone: bool) -> None:
    wanted = "a vector or an array of numbers" + ("" if alone else ", or a number")
    kind = _expect(rows, name, "featuresCol", DataType, wanted)
    is_array = isinstance(kind, ArrayType) and isinstance(kind.elementType, NumericType)
    is_number = isinstance(kind, NumericType | BooleanType) and not alone
    if not (isinstance(kind, VectorUDT) or is_array or is_number):
        raise DataError(f"the column {name!r} (featuresCol) is {kind.simpleString()}; it must be {wanted}")


def _expect(
    rows: DataFrame, name: str, parameter: str, kinds: type[DataType] | tuple[type[DataType], ...], what: str
) -> DataType:
    if name not in rows.columns:
        raise DataError(f"there is no column {name!r} ({parameter}); there are {', '.join(rows.columns)}")
    kind = rows.schema[name].dataType
    if not isinstance(kind, kinds):
        raise DataError(f"the column {name!r} ({parameter}) is {kind.simpleString()}: {what}")
    return kind
