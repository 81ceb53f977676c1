"""A registered model as new columns of a DataFrame.

Runs on the driver; the work is done by tasks, when rows are asked for.
"""

import hashlib
import shutil
import tempfile
from collections.abc import Collection
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any, Literal

from pyspark.ml import PipelineModel
from pyspark.ml.feature import RegexTokenizer, Tokenizer, VectorSizeHint
from pyspark.ml.functions import array_to_vector, vector_to_array
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - what Spark's own documentation calls it
from pyspark.sql.types import ArrayType, DataType, DoubleType, NumericType, StringType, StructField, StructType

from sparkdl.data.card import PREPROCESSING, InputSpec
from sparkdl.data.features import apply_preprocessing, image_fits, vector_width
from sparkdl.data.preprocessing import check_preprocessing
from sparkdl.data.storage import spark_url
from sparkdl.errors import DataError
from sparkdl.scoring.card import ModelCard
from sparkdl.scoring.predictor import BATCH_SIZE, TOP_K
from sparkdl.scoring.task import ERROR, ScoringTask
from sparkdl.settings import Tracking
from sparkdl.tracking import download

__all__ = ["load_preprocessing", "score", "with_inputs"]

PAIR = StructType([StructField("label", StringType()), StructField("probability", DoubleType())])
ANSWER = StructType(
    [
        StructField("prediction", StringType()),
        StructField("probability", DoubleType()),
        StructField("top_k", ArrayType(PAIR)),
    ]
)
"""The columns that are added."""

_WHOLE = {"tinyint", "smallint", "int", "bigint"}
ROW, INPUT, REFUSED = "__sparkdl_row", "__sparkdl_input", "__sparkdl_refused"


def score(
    df: DataFrame,
    model_uri: str,
    *,
    top_k: int = TOP_K,
    batch_size: int = BATCH_SIZE,
    on_error: Literal["fail", "null"] = "fail",
    key: str | None = None,
    trusted_stages: Collection[str] = (),
    tracking: Tracking | None = None,
) -> DataFrame:
    """Append a registered model's predictions to raw rows, lazily. Runs on the driver.

    ``model_uri`` is ``models:/name@alias``, ``models:/name/version``, or the folder of a saved model. The result has
    all columns of ``df``, and ``prediction`` (the label's name), ``probability`` (of that label) and ``top_k`` (an
    array of label and probability, the likeliest first). The driver fetches the model and Spark brings it to the
    executors, where each Python worker loads it once; executors need no access to MLflow.

    A row may be one that the model cannot answer: null, of another size, NaN. With ``on_error="fail"`` its task fails
    with a :class:`DataError` that names the row by the column ``key`` and says why; with ``"null"`` the row has no
    prediction, one more column ``error`` says why, and all other rows are scored. A number that is not one of the type
    that the model was trained on, such as 1.5 where that is int, counts as null.

    Nothing in a model's folder is executed. Preprocessing with stages of your own (``prepare(pipeline=...)``) is loaded
    when their classes are among ``trusted_stages``, each as ``package.module.Class``.

    Raises :class:`~sparkdl.errors.RegistryError` for a model that does not exist, :class:`~sparkdl.errors.ModelError`
    for one that is damaged or would run code, and :class:`DataError` for columns that are missing or of another type.
    """
    folder = download(model_uri, tracking)
    card = ModelCard.load(folder)
    added = ANSWER if on_error == "fail" else StructType([*ANSWER, StructField(ERROR, StringType())])
    _check(df, card, added.names, key)
    spark = df.sparkSession
    prepared = with_inputs(df, card, folder, trusted_stages=trusted_stages)
    task = ScoringTask(
        files=tuple((file.name, _ship(spark, file)) for file in sorted(folder.iterdir()) if file.is_file()),
        input=len(df.columns),
        keep=tuple(df.columns),
        top_k=top_k,
        batch_size=batch_size,
        threads=int(spark.conf.get("spark.task.cpus", "1") or 1),
        on_error=on_error,
        key=key,
    )
    return prepared.mapInArrow(task, StructType([*df.schema.fields, *added]))


def with_inputs(df: DataFrame, card: ModelCard, folder: Path, *, trusted_stages: Collection[str] = ()) -> DataFrame:
    """All columns of ``df`` as they are, and behind them the model's input."""
    column, sparse = card.input.column, card.input.kind == "sparse"
    # Packed away while preprocessing runs, columns can neither be overwritten by it nor clash with what it makes.
    packed = df.select(F.struct("*").alias(ROW), *[F.col(_quote(name)) for name in card.raw_columns])
    if card.preprocessing:
        model = load_preprocessing(df.sparkSession, folder, trusted_stages=trusted_stages)
        as_fitted = [_as_fitted(packed, name, type_, model) for name, type_ in card.raw_columns.items()]
        refused = reduce(or_, [refused for _, refused in as_fitted])
        packed = packed.select(ROW, *[value for value, _ in as_fitted], refused.alias(REFUSED))
        packed = apply_preprocessing(packed, model, column, sparse=sparse)
    kept = [F.col(f"{ROW}.{_quote(name)}") for name in df.columns]
    input = F.col(_quote(column)) if sparse else _plain(packed, column, card.input)
    if card.preprocessing:
        input = F.when(~F.col(REFUSED), input)
    return packed.select(*kept, input.alias(INPUT))


def load_preprocessing(spark: SparkSession, folder: Path, *, trusted_stages: Collection[str] = ()) -> PipelineModel:
    """The fitted pipeline in a model's folder, which Spark itself reads, so it is put where executors can read too.

    Raises :class:`~sparkdl.errors.ModelError` for stages that could run code.
    """
    source = folder / PREPROCESSING
    check_preprocessing(source, trusted=trusted_stages)
    local = spark_url(str(source.resolve()))
    jvm, context = spark.sparkContext._jvm, spark.sparkContext
    assert jvm is not None
    configuration = context._jsc.hadoopConfiguration()
    shared = jvm.org.apache.hadoop.fs.FileSystem.get(configuration)
    if str(context.master).startswith("local") or shared.getUri().getScheme() == "file":
        return PipelineModel.load(local)
    target = jvm.org.apache.hadoop.fs.Path(f"sparkdl/{context.applicationId}/{_digest(source)}")
    if not shared.exists(target):
        shared.copyFromLocalFile(jvm.org.apache.hadoop.fs.Path(local), target)
        shared.deleteOnExit(target)
    return PipelineModel.load(shared.makeQualified(target).toString())


def _check(df: DataFrame, card: ModelCard, added: list[str], key: str | None) -> None:
    """Compare the columns with what the model reads, and with what it will add."""
    missing = [name for name in card.raw_columns if name not in df.columns]
    if missing:
        raise DataError(
            f"the model reads {_describe(card)}; missing {', '.join(map(repr, missing))} among {', '.join(df.columns)}"
        )
    if key is not None and key not in df.columns:
        raise DataError(f"no column {key!r} to name rows by (`key`); the rows have {', '.join(df.columns)}")
    taken = [name for name in added if name in df.columns]
    if taken:
        raise DataError(f"the rows have a column {taken[0]!r} already; rename or drop it before scoring")
    for name, expected in card.raw_columns.items():
        found = df.schema[name].dataType
        if not _fits(found, expected):
            raise DataError(
                f"column {name!r} is {found.simpleString()}, but the model was trained on {expected}; it reads"
                f" {_describe(card)}"
            )


def _describe(card: ModelCard) -> str:
    """The raw columns in words, with the input's shape where it is a raw column itself."""
    shape = "" if card.preprocessing else f" of shape {'x'.join(map(str, card.input.shape))} ({card.input.dtype})"
    return ", ".join(f"{name!r} ({type_}{shape})" for name, type_ in card.raw_columns.items())


def _fits(found: DataType, expected: str) -> bool:
    """Whether a column can be read as the type that the model was trained on: numbers as numbers, vectors as arrays."""
    name = found.simpleString()
    if name == expected:
        return True
    vectors = ("vector", "array<")
    if name.startswith(vectors) and expected.startswith(vectors):
        return True
    numbers = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal", "boolean")
    return isinstance(found, NumericType) and expected.startswith(numbers)


def _as_fitted(df: DataFrame, name: str, sql_type: str, model: PipelineModel) -> tuple[Column, Column]:
    """A raw column as preprocessing takes it, and whether that is not what the row has: such a row is not answered.

    Spark's stages end the whole job where a text is null, or a vector null or of another width.
    """
    column, value = F.col(_quote(name)), _cast(df, name, sql_type)
    refused = _is_changed(df, name, value)
    if sql_type == "vector":
        is_vector = df.schema[name].dataType.simpleString() == "vector"
        width = vector_width(column) if is_vector else F.size(column)
        widths = [stage.getSize() for stage in _stages_on(name, model) if isinstance(stage, VectorSizeHint)]
        holes = [] if is_vector else [F.exists(column.cast("array<double>"), lambda one: one.isNull())]
        refused = F.coalesce(reduce(or_, [column.isNull(), *holes, *[width != each for each in widths]]), F.lit(True))
        zeros = F.array_repeat(F.lit(0.0), widths[0] if widths else 0)
        value = F.when(refused, array_to_vector(zeros)).otherwise(value)
    elif any(type(stage) in (RegexTokenizer, Tokenizer) for stage in _stages_on(name, model)):
        refused, value = column.isNull(), F.coalesce(column, F.lit(""))
    return value.alias(name), refused


def _stages_on(name: str, model: PipelineModel) -> list[Any]:
    """The stages of a pipeline, and of those in it, that read this column alone."""
    found: list[Any] = []
    for stage in model.stages:
        if isinstance(stage, PipelineModel):
            found += _stages_on(name, stage)
        elif stage.hasParam("inputCol") and stage.isSet("inputCol") and stage.getOrDefault("inputCol") == name:
            found.append(stage)
    return found


def _cast(df: DataFrame, name: str, sql_type: str) -> Column:
    """A raw column in the type that preprocessing was fitted on."""
    column, found = F.col(_quote(name)), df.schema[name].dataType.simpleString()
    if found == sql_type:
        return column
    if sql_type == "vector":
        return array_to_vector(column.cast("array<double>")).alias(name)
    value = column.cast(sql_type)
    if sql_type in _WHOLE:
        value = F.when(value == column, value)  # NaN would become 0
    return value.alias(name)


def _is_changed(df: DataFrame, name: str, value: Column) -> Column:
    """Whether a row has a number that is another one in the type that preprocessing was fitted on, as 1.5 is in int."""
    column = F.col(_quote(name))
    if not isinstance(df.schema[name].dataType, NumericType):
        return F.lit(False)
    return column.isNotNull() & ~F.isnan(column.cast("double")) & value.isNull()


def _plain(df: DataFrame, name: str, input: InputSpec) -> Column:
    """The input column in a form that Arrow carries without conversion: bytes, or an array of float32."""
    kind = df.schema[name].dataType.simpleString()
    if kind == "vector":
        return vector_to_array(F.col(_quote(name)), "float32")
    if kind.startswith("array<") and kind != "array<float>":
        return F.col(_quote(name)).cast("array<float>")
    if not kind.startswith("struct<"):
        return F.col(_quote(name))
    image = F.col(_quote(name))
    fits = image_fits(image, input.shape)
    return F.when(fits, image["data"]).when(~fits, F.lit(b""))  # which has the wrong size, and is not null


def _ship(spark: SparkSession, file: Path) -> str:
    """Have Spark bring the file to every executor, once per application; returns its name there."""
    digest = _digest(file)
    name = f"sparkdl-{digest[:32]}{file.suffix}"
    context = spark.sparkContext
    key = (str(context.applicationId), name)
    if key not in _shipped:
        folder = tempfile.TemporaryDirectory(prefix="sparkdl-ship-")  # Spark reads the file there when executors ask
        shutil.copyfile(file, Path(folder.name, name))
        context.addFile(Path(folder.name, name).as_uri())
        _shipped[key] = folder
    return name


_shipped: dict[tuple[str, str], tempfile.TemporaryDirectory[str]] = {}  # removed when the driver's Python ends


def _digest(path: Path) -> str:
    """SHA-256 of a file, or of all files of a folder with their names."""
    digest = hashlib.sha256()
    for file in [path] if path.is_file() else sorted(item for item in path.rglob("*") if item.is_file()):
        digest.update(file.name.encode())
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def _quote(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
