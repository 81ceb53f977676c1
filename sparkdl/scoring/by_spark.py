"""Applies preprocessing that only Spark can run: pipelines with the user's own stages. Rows are scored afterwards.

Runs on the driver, lazily; Spark does the work.
"""

import re
from collections.abc import Collection, Iterator
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.ml import PipelineModel
from pyspark.ml.feature import RegexTokenizer, SQLTransformer, Tokenizer, VectorSizeHint
from pyspark.ml.functions import array_to_vector
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - what Spark's own documentation calls it
from pyspark.sql.types import NumericType

from sparkdl.data.bad_rows import PROBLEM, problem_text
from sparkdl.data.card import PREPROCESSING
from sparkdl.data.model_card import ModelCard
from sparkdl.data.preparing.features import width_of
from sparkdl.data.preparing.own_pipeline import apply_preprocessing
from sparkdl.data.raw_columns import select_columns
from sparkdl.data.sql import identifier
from sparkdl.data.working_columns import WORKING
from sparkdl.errors import ConfigError
from sparkdl.preprocessing import check_preprocessing
from sparkdl.scoring.shipping import digest_of, shipping
from sparkdl.sessions import is_remote
from sparkdl.storage import spark_url

__all__ = ["INPUT", "REFUSED", "load_preprocessing", "with_inputs"]

_COPY = re.compile(r"SELECT \*, (`.+`) AS `(\w+)` FROM __THIS__")
"""The stage that copies a column whose name Spark ML cannot read to another name."""
_WHOLE = {"tinyint", "smallint", "int", "bigint"}
_BOUNDED = re.compile(rf"{'|'.join(_WHOLE)}|decimal\(\d+,\d+\)")
"""Types with a limited range, and the only texts of a card that are put into SQL."""
ROW, INPUT, REFUSED = f"{WORKING}row", f"{WORKING}input", f"{WORKING}refused"


def with_inputs(df: DataFrame, card: ModelCard, folder: Path, *, trusted_stages: Collection[str] = ()) -> DataFrame:
    """All columns of ``df`` unchanged, the model's input, and the reason for which a row is refused (or null).

    The source and the preprocessing may refuse rows. The column in which the source reports rows that it could not read
    is not in the result.
    """
    column, sparse = card.input_column, card.input.kind == "sparse"
    # Packed into a struct while preprocessing runs: it can neither overwrite these columns nor clash with their names.
    known = [PROBLEM] if PROBLEM in df.columns else []
    unread = problem_text(F.col(PROBLEM)) if known else F.lit(None).cast("string")
    packed = select_columns(df, [*card.raw_columns, *known], row=ROW).withColumn(REFUSED, unread).drop(PROBLEM)
    model = load_preprocessing(df.sparkSession, folder, trusted_stages=trusted_stages)
    as_fitted = [_as_fitted(packed, name, type_, model) for name, type_ in card.raw_columns.items()]
    refused = F.coalesce(REFUSED, *[reason for _, reason in as_fitted]).alias(REFUSED)
    packed = packed.select(ROW, *[value for value, _ in as_fitted], refused)
    packed = apply_preprocessing(packed, model, column, sparse=sparse)
    kept = [F.col(f"{ROW}.`{place}`").alias(name) for place, name in enumerate(df.columns) if name != PROBLEM]
    made = F.when(F.col(REFUSED).isNull(), F.col(identifier(column)))
    return packed.select(*kept, made.alias(INPUT), REFUSED)


def load_preprocessing(spark: SparkSession, folder: Path, *, trusted_stages: Collection[str] = ()) -> PipelineModel:
    """Load the fitted pipeline in a model's folder. Spark's executors read it, so it is first copied to where they can.

    Raises :class:`~sparkdl.errors.ModelError` for stages that could run code, and :class:`ConfigError` if a Spark
    Connect server cannot read the folder.
    """
    source = folder / PREPROCESSING
    check_preprocessing(source, trusted=trusted_stages)
    local = spark_url(str(source.resolve()))
    if is_remote(spark):
        try:
            return PipelineModel.load(local)
        except AnalysisException as error:
            raise ConfigError(
                f"the Spark Connect server cannot read the model's preprocessing, {source} on this machine; copy the"
                f" model to a folder that both can read, and score with that folder: {str(error).splitlines()[0]}"
            ) from None
    jvm, context = spark.sparkContext._jvm, spark.sparkContext
    assert jvm is not None
    configuration = context._jsc.hadoopConfiguration()
    shared = jvm.org.apache.hadoop.fs.FileSystem.get(configuration)
    if str(context.master).startswith("local") or shared.getUri().getScheme() == "file":
        return PipelineModel.load(local)
    target = jvm.org.apache.hadoop.fs.Path(f"sparkdl/{context.applicationId}/{digest_of(source)}")
    with shipping:
        if not shared.exists(target):
            shared.copyFromLocalFile(jvm.org.apache.hadoop.fs.Path(local), target)
            shared.deleteOnExit(target)
    return PipelineModel.load(shared.makeQualified(target).toString())


def _as_fitted(df: DataFrame, name: str, sql_type: str, model: PipelineModel) -> tuple[Column, Column]:
    """A raw column in the type that preprocessing was fitted on, and the reason for which a row is refused, or null.

    Refused rows get a harmless value, because Spark's stages would end the whole job at a null text, a null vector, or
    a vector of another width.
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
    """The stages of a pipeline, and of nested pipelines, whose only input is this column or a copy of it."""
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
    """The column in another type; null where a value does not fit, which would end the job in ANSI mode."""
    return F.expr(f"try_cast({identifier(name)} AS {sql_type})")


def _is_changed(df: DataFrame, name: str, value: Column) -> Column:
    """Whether a number would change in the type that preprocessing was fitted on, as 1.5 would in int."""
    column = F.col(identifier(name))
    if not isinstance(df.schema[name].dataType, NumericType):
        return F.lit(False)
    return column.isNotNull() & ~F.isnan(column.cast("double")) & value.isNull()
