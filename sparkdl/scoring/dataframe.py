"""A registered model as new columns of a DataFrame.

Runs on the driver; the work is done by tasks, when rows are asked for.
"""

import hashlib
import re
import shutil
import tempfile
import threading
from collections.abc import Collection, Iterator
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any, Literal, Protocol

from pyspark.errors import AnalysisException
from pyspark.ml import PipelineModel
from pyspark.ml.feature import RegexTokenizer, SQLTransformer, Tokenizer, VectorSizeHint
from pyspark.ml.functions import array_to_vector, vector_to_array
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - what Spark's own documentation calls it
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import NumericType, StringType, StructField, StructType

from sparkdl.data.bad_rows import PROBLEM, problem_text
from sparkdl.data.card import PREPROCESSING, InputSpec
from sparkdl.data.preparing.features import apply_preprocessing, image_fits, width_of
from sparkdl.data.raw_columns import select_columns
from sparkdl.data.sql import identifier
from sparkdl.data.working_columns import WORKING
from sparkdl.errors import ConfigError
from sparkdl.preprocessing import check_preprocessing
from sparkdl.scoring.columns import check_columns, check_room
from sparkdl.scoring.model_card import ModelCard
from sparkdl.scoring.predictor import answering_task
from sparkdl.scoring.task import ERROR, ScoringTask
from sparkdl.sessions import is_remote, ship_file
from sparkdl.settings import Tracking
from sparkdl.settings.score import BATCH_SIZE, TOP_K
from sparkdl.storage import spark_url
from sparkdl.tracking import download

__all__ = ["load_preprocessing", "score", "score_vectors", "with_inputs"]

_COPY = re.compile(r"SELECT \*, (`.+`) AS `(\w+)` FROM __THIS__")
"""The stage that gives a column another name, where Spark ML cannot take its own."""
_WHOLE = {"tinyint", "smallint", "int", "bigint"}
_BOUNDED = re.compile(rf"{'|'.join(_WHOLE)}|decimal\(\d+,\d+\)")
"""Types that are too small for some numbers. Nothing else of a card may stand in SQL."""
ROW, INPUT, REFUSED = f"{WORKING}row", f"{WORKING}input", f"{WORKING}refused"


class Trained(Protocol):
    """What training returns, of networks and of ensembles for very many classes."""

    @property
    def model_uri(self) -> str: ...
    @property
    def tracking(self) -> Tracking: ...


def score(
    df: DataFrame,
    model: "str | Trained",
    *,
    top_k: int = TOP_K,
    batch_size: int = BATCH_SIZE,
    on_error: Literal["fail", "null"] = "fail",
    key: str | None = None,
    trusted_stages: Collection[str] = (),
    tracking: Tracking | None = None,
) -> DataFrame:
    """Append a registered model's predictions to raw rows, lazily. Runs on the driver.

    ``model`` is what :func:`sparkdl.train` or :func:`sparkdl.train_extreme` has returned, which knows its store; or a
    model in the store of ``tracking``, named ``models:/name@alias`` or ``models:/name/version``; or the folder of a
    saved model. The result has all columns of ``df``, and ``prediction`` (the label, in the type that it had when the
    dataset was prepared; a text of models that were made before cards said which), ``probability`` (of that label)
    and ``top_k`` (an array of label and probability, the likeliest first). Of a model for several labels,
    ``prediction`` is the array of those whose probability is above one half, and there is no ``probability``; of one
    for regression, it is the number, of one for ranking the score, higher for what should come first, and nothing else
    is added. The driver fetches the
    model and Spark brings it to the executors, where each Python worker loads it once; executors need no access to
    MLflow.

    A row may be one that the model cannot answer: null, of another size, NaN or infinite, or with a number that is none
    of the type that the model was trained on, such as 1.5 where that is int. With ``on_error="fail"`` its task fails
    with a :class:`~sparkdl.errors.DataError` that names the row by the column ``key`` and says why; with ``"null"`` the
    row has no prediction, one more column ``error`` says why, and all other rows are scored.

    Nothing in a model's folder is executed. Preprocessing with stages of your own (``prepare(pipeline=...)``) is loaded
    when their classes are among ``trusted_stages``, each as ``package.module.Class``.

    Raises :class:`~sparkdl.errors.RegistryError` for a model that does not exist, :class:`~sparkdl.errors.ModelError`
    for one that is damaged or would run code, :class:`~sparkdl.errors.DataError` for columns that are missing, of
    another type or of the same name, and :class:`ConfigError` for a ``top_k`` or ``batch_size`` below 1.
    """
    if min(top_k, batch_size) < 1:
        raise ConfigError(f"score: `top_k` is {top_k} and `batch_size` is {batch_size}; both must be 1 or more")
    if not isinstance(model, str):
        tracking = tracking or model.tracking
        model = model.model_uri
    folder = download(model, tracking)
    card = ModelCard.load(folder)
    answer = from_arrow_schema(answering_task(card).answer)
    added = answer if on_error == "fail" else StructType([*answer, StructField(ERROR, StringType())])
    return _scored(
        df,
        card,
        folder,
        added,
        top_k=top_k,
        batch_size=batch_size,
        key=key,
        trusted_stages=trusted_stages,
        on_error=on_error,
    )


def score_vectors(
    df: DataFrame,
    model_uri: str,
    *,
    vectors: bool = True,
    contributions: bool = False,
    tracking: Tracking | None = None,
) -> DataFrame:
    """Append what pyspark.ml's columns are made from, lazily. Runs on the driver.

    Of a classifier (``vectors``), that is ``prediction`` (the label), ``logits`` and ``probabilities``, arrays
    by class index; of a model for regression or ranking ``prediction``. With ``contributions``, an array of these comes
    last: see :func:`~sparkdl.scoring.predictor.answering_task`. Otherwise like :func:`score`, whose errors it raises.
    """
    folder = download(model_uri, tracking)
    card = ModelCard.load(folder)
    answer = answering_task(card, vectors=vectors, contributions=contributions).answer
    return _scored(df, card, folder, from_arrow_schema(answer), vectors=vectors, contributions=contributions)


def _scored(
    df: DataFrame,
    card: ModelCard,
    folder: Path,
    added: StructType,
    *,
    top_k: int = TOP_K,
    batch_size: int = BATCH_SIZE,
    key: str | None = None,
    trusted_stages: Collection[str] = (),
    **options: Any,
) -> DataFrame:
    """The rows with the columns that are added."""
    check_columns(df, card, key)
    check_room(df, added.names)
    spark, kept = df.sparkSession, df.drop(PROBLEM)
    prepared = with_inputs(df, card, folder, trusted_stages=trusted_stages)
    task = ScoringTask(
        files=tuple((file.name, _ship(spark, file)) for file in sorted(folder.iterdir()) if file.is_file()),
        input=len(kept.columns),
        keep=tuple(kept.columns),
        top_k=top_k,
        batch_size=batch_size,
        threads=int(spark.conf.get("spark.task.cpus", "1") or 1),
        key=key,
        **options,
    )
    numbered = prepared.toDF(*map(str, range(len(prepared.columns))))  # mapInArrow takes a dot in a name for a field's
    made = [*kept.schema.fields, *added]
    placed = [StructField(str(place), each.dataType, each.nullable, each.metadata) for place, each in enumerate(made)]
    return numbered.mapInArrow(task, StructType(placed)).toDF(*[each.name for each in made])


def with_inputs(df: DataFrame, card: ModelCard, folder: Path, *, trusted_stages: Collection[str] = ()) -> DataFrame:
    """All columns of ``df`` as they are, the model's input, and why source or preprocessing refuse a row (or null).

    What the source says of rows that it could not read, in a column of its own, is no column of the result.
    """
    column, sparse = card.input_column, card.input.kind == "sparse"
    # Packed away while preprocessing runs, columns can neither be overwritten by it nor clash with what it makes.
    known = [PROBLEM] if PROBLEM in df.columns else []
    unread = problem_text() if known else F.lit(None).cast("string")
    packed = select_columns(df, [*card.raw_columns, *known], row=ROW).withColumn(REFUSED, unread).drop(PROBLEM)
    if card.preprocessing:
        model = load_preprocessing(df.sparkSession, folder, trusted_stages=trusted_stages)
        as_fitted = [_as_fitted(packed, name, type_, model) for name, type_ in card.raw_columns.items()]
        refused = F.coalesce(REFUSED, *[reason for _, reason in as_fitted]).alias(REFUSED)
        packed = packed.select(ROW, *[value for value, _ in as_fitted], refused)
        packed = apply_preprocessing(packed, model, column, sparse=sparse)
    kept = [F.col(f"{ROW}.`{place}`").alias(name) for place, name in enumerate(df.columns) if name != PROBLEM]
    input = F.col(identifier(column)) if sparse else _plain(packed, column, card.input)
    return packed.select(*kept, F.when(F.col(REFUSED).isNull(), input).alias(INPUT), REFUSED)


def load_preprocessing(spark: SparkSession, folder: Path, *, trusted_stages: Collection[str] = ()) -> PipelineModel:
    """The fitted pipeline in a model's folder, which Spark itself reads, so it is put where executors can read too.

    Raises :class:`~sparkdl.errors.ModelError` for stages that could run code.
    """
    source = folder / PREPROCESSING
    check_preprocessing(source, trusted=trusted_stages)
    local = spark_url(str(source.resolve()))
    if is_remote(spark):
        try:
            return PipelineModel.load(local)
        except AnalysisException as error:
            raise ConfigError(
                f"the Spark Connect server cannot read the model's preprocessing in {source} of this machine; copy the"
                f" model to a folder that both reach, and name that as the model: {str(error).splitlines()[0]}"
            ) from None
    jvm, context = spark.sparkContext._jvm, spark.sparkContext
    assert jvm is not None
    configuration = context._jsc.hadoopConfiguration()
    shared = jvm.org.apache.hadoop.fs.FileSystem.get(configuration)
    if str(context.master).startswith("local") or shared.getUri().getScheme() == "file":
        return PipelineModel.load(local)
    target = jvm.org.apache.hadoop.fs.Path(f"sparkdl/{context.applicationId}/{_digest(source)}")
    with _shipping:
        if not shared.exists(target):
            shared.copyFromLocalFile(jvm.org.apache.hadoop.fs.Path(local), target)
            shared.deleteOnExit(target)
    return PipelineModel.load(shared.makeQualified(target).toString())


def _as_fitted(df: DataFrame, name: str, sql_type: str, model: PipelineModel) -> tuple[Column, Column]:
    """A raw column as preprocessing takes it, and why it does not take what the row has, or null.

    Spark's stages end the whole job where a text is null, or a vector null or of another width.
    """
    column, value = F.col(identifier(name)), _cast(df, name, sql_type)
    refused = _is_changed(df, name, value)
    problem = F.concat(F.lit(": "), column.cast("string"), F.lit(f" is no {sql_type}, which the model was trained on"))
    if sql_type == "vector":
        kind = df.schema[name].dataType.simpleString()
        width = width_of(column, kind)
        widths = [stage.getSize() for stage in _stages_on(name, model) if isinstance(stage, VectorSizeHint)]
        holes = [] if kind == "vector" else [F.exists(_try_cast(name, "array<double>"), lambda one: one.isNull())]
        refused = F.coalesce(reduce(or_, [column.isNull(), *holes, *[width != each for each in widths]]), F.lit(True))
        problem = F.lit(" is null or lacks a number" + "".join(f", or is not {each} wide" for each in widths))
        zeros = F.array_repeat(F.lit(0.0), widths[0] if widths else 0)
        value = F.when(refused, array_to_vector(zeros)).otherwise(value)
    elif any(type(stage) in (RegexTokenizer, Tokenizer) for stage in _stages_on(name, model)):
        refused, problem, value = column.isNull(), F.lit(" is null"), F.coalesce(column, F.lit(""))
    return value.alias(name), F.when(refused, F.concat(F.lit(f"column {name!r}"), problem))


def _stages_on(name: str, model: PipelineModel) -> list[Any]:
    """The stages of a pipeline, and of those in it, that read this column alone, by its own name or as a copy."""
    names, found = {name}, []
    for stage in _flat(model):
        copy = _COPY.fullmatch(stage.getStatement() or "") if isinstance(stage, SQLTransformer) else None
        if copy and copy[1] in map(identifier, names):
            names.add(copy[2])
        elif stage.hasParam("inputCol") and stage.isSet("inputCol") and stage.getOrDefault("inputCol") in names:
            found.append(stage)
    return found


def _flat(model: PipelineModel) -> Iterator[Any]:
    for stage in model.stages:
        yield from _flat(stage) if isinstance(stage, PipelineModel) else [stage]


def _cast(df: DataFrame, name: str, sql_type: str) -> Column:
    """A raw column in the type that preprocessing was fitted on."""
    column, found = F.col(identifier(name)), df.schema[name].dataType.simpleString()
    if found == sql_type:
        return column
    if sql_type == "vector":
        return array_to_vector(_try_cast(name, "array<double>")).alias(name)
    value = _try_cast(name, sql_type) if _BOUNDED.fullmatch(sql_type) else column.cast(sql_type)
    if sql_type in _WHOLE:
        value = F.when(value == column, value)  # NaN would become 0
    return value.alias(name)


def _try_cast(name: str, sql_type: str) -> Column:
    """The column in another type, and null what does not fit into it, which under ANSI rules ends the job."""
    return F.expr(f"try_cast({identifier(name)} AS {sql_type})")


def _is_changed(df: DataFrame, name: str, value: Column) -> Column:
    """Whether a row has a number that is another one in the type that preprocessing was fitted on, as 1.5 is in int."""
    column = F.col(identifier(name))
    if not isinstance(df.schema[name].dataType, NumericType):
        return F.lit(False)
    return column.isNotNull() & ~F.isnan(column.cast("double")) & value.isNull()


def _plain(df: DataFrame, name: str, input: InputSpec) -> Column:
    """The input column in a form that Arrow carries without conversion: bytes, or an array of float32."""
    kind = df.schema[name].dataType.simpleString()
    if kind == "vector":
        return vector_to_array(F.col(identifier(name)), "float32")
    if kind.startswith("array<") and kind != "array<float>":
        return _try_cast(name, "array<float>")
    if not kind.startswith("struct<"):
        return F.col(identifier(name))
    image = F.col(identifier(name))
    fits = image_fits(image, input.shape)
    return F.when(fits, image["data"]).when(~fits, F.lit(b""))  # which has the wrong size, and is not null


def _ship(spark: SparkSession, file: Path) -> str:
    """Have Spark bring the file to every executor, once per application; returns its name there."""
    name = f"sparkdl-{_digest(file)[:32]}{file.suffix}"
    key = (spark.session_id if is_remote(spark) else str(spark.sparkContext.applicationId), name)  # type: ignore[attr-defined]
    with _shipping:
        if key not in _shipped:
            folder = tempfile.TemporaryDirectory(prefix="sparkdl-ship-")  # Spark reads it there when executors ask
            shutil.copyfile(file, Path(folder.name, name))
            ship_file(spark, Path(folder.name, name))
            _shipped[key] = folder
    return name


_shipping = threading.Lock()  # two threads may score one model, and Spark takes a file of each name once
_shipped: dict[tuple[str, str], tempfile.TemporaryDirectory[str]] = {}  # removed when the driver's Python ends


def _digest(path: Path) -> str:
    """SHA-256 of a file, or of all files of a folder with their names."""
    digest = hashlib.sha256()
    for file in [path] if path.is_file() else sorted(item for item in path.rglob("*") if item.is_file()):
        digest.update(file.name.encode())
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()
