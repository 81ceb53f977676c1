"""What prepare's stages were before they were sparkdl's own: pipelines of pyspark.ml.

Models and datasets of then hold such pipelines, fitted; and what Spark makes of a row is what the stages make of it.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from typing import Any

from pyspark import keyword_only
from pyspark.ml import Estimator, Pipeline, Transformer
from pyspark.ml.feature import (
    IDF,
    CountVectorizerModel,
    HashingTF,
    IDFModel,
    Imputer,
    NGram,
    Normalizer,
    RegexTokenizer,
    SQLTransformer,
    StandardScaler,
    StringIndexer,
    VectorAssembler,
    VectorSizeHint,
)
from pyspark.ml.functions import array_to_vector
from pyspark.ml.linalg import VectorUDT
from pyspark.ml.param import Param, Params, TypeConverters
from pyspark.ml.param.shared import HasInputCol, HasNumFeatures, HasOutputCol, HasOutputCols
from pyspark.ml.util import DefaultParamsReadable, DefaultParamsWritable
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import DataType, DateType, StructField, StructType, TimestampType

from sparkdl.data.preparing.stages import _TIME, _TRUTH, KINDS, TEXT_STAGES, _check_columns, _holds
from sparkdl.data.sql import identifier
from sparkdl.data.working_columns import WORKING
from sparkdl.settings import Stage

BETWEEN_WORDS = r"(?U)\W+"
START = "^"
Made = tuple[list[Any], list[tuple[str, ...]]]


def build_pipeline(
    types: "Mapping[str, DataType]",
    stages: Sequence[Stage],
    output: str,
    *,
    unit_norm: bool,
    widths: Mapping[str, int] | None,
) -> "Pipeline":
    """The stages for columns of these types, then one vector of all results.

    ``widths`` are those of vectors; None where a lone column of vectors is the result.
    """

    current: dict[str, tuple[str, ...]] = {column: (column,) for column in types}
    holds = {column: _holds(kind) for column, kind in types.items()}
    parts: list[Any] = []
    for number, column in enumerate(types):
        if {".", "`"} & set(column):  # Spark ML would look for a field; the copy is a stage, so that raw rows do for it
            current[column] = (f"{WORKING}{number}",)
            parts.append(_named(identifier(column), *current[column]))
    # Assemblers ask for the widths of vectors, which not all sources tell, nor rows that are to be scored.
    parts += [
        VectorSizeHint(inputCol=current[column][0], size=width, handleInvalid="optimistic")
        for column, width in (widths or {}).items()
    ]
    for number, stage in enumerate(stages):
        _check_columns(number, stage, current)
        prefix = f"{WORKING}stage{number}"
        for place, column in enumerate(stage.columns):
            if cast := _cast(stage, holds[column], types[column], current[column][0]):
                current[column] = (f"{prefix}_{place}_cast",)
                parts.append(_named(cast, *current[column]))
            holds[column] = KINDS[stage.kind].makes
        made, outputs = _STAGES[stage.kind](stage, [one for column in stage.columns for one in current[column]], prefix)
        parts += made
        results = iter(outputs)
        for column in stage.columns:
            found = [one for _ in current[column] for one in next(results)]
            current[column] = tuple(dict.fromkeys(found))
    assembled = f"{WORKING}unscaled" if unit_norm else output
    vectors = list(dict.fromkeys(one for columns in current.values() for one in columns))
    if widths is None:  # as it is: sparse ones may be of any width
        parts.append(_named(identifier(vectors[0]), assembled))
    else:
        parts.append(VectorAssembler(inputCols=vectors, outputCol=assembled, handleInvalid="keep"))
    if unit_norm:
        parts.append(Normalizer(inputCol=assembled, outputCol=output, p=2.0))
    return Pipeline(stages=parts)


def _cast(stage: Stage, holds: str, kind: "DataType", column: str) -> str | None:
    """The SQL of what Spark ML takes in place of a column; None where it takes the column itself.

    Nothing depends on the time zone of the session: times that lie on no calendar become microseconds of UTC.
    """

    if stage.kind == "impute" and holds == _TRUTH:
        return f"CAST({identifier(column)} AS double)"
    if stage.kind == "index" and holds in (_TRUTH, _TIME):
        is_instant = isinstance(kind, TimestampType)
        return f"unix_micros({identifier(column)})" if is_instant else f"CAST({identifier(column)} AS string)"
    return None


def _named(value: str, name: str) -> Any:
    """The stage that gives a value of SQL a name of its own."""

    return SQLTransformer(statement=f"SELECT *, {value} AS `{name}` FROM __THIS__")


def _numbered(inputs: Sequence[str], prefix: str) -> list[str]:
    return [f"{prefix}_{index}" for index in range(len(inputs))]


def _each(outputs: Iterable[str]) -> list[tuple[str, ...]]:
    return [(output,) for output in outputs]


def _standardise(stage: Stage, inputs: list[str], prefix: str) -> Made:

    assembler = VectorAssembler(inputCols=inputs, outputCol=f"{prefix}_assembled", handleInvalid="keep")
    scaler = StandardScaler(inputCol=f"{prefix}_assembled", outputCol=prefix, withMean=True, withStd=True)
    return [assembler, scaler], [(prefix,)] * len(inputs)


def _impute(stage: Stage, inputs: list[str], prefix: str) -> Made:

    outputs = _numbered(inputs, prefix)
    return [Imputer(inputCols=inputs, outputCols=outputs, strategy=stage.strategy)], _each(outputs)


def _index(stage: Stage, inputs: list[str], prefix: str) -> Made:

    outputs = _numbered(inputs, prefix)
    return [StringIndexer(inputCols=inputs, outputCols=outputs, handleInvalid="keep")], _each(outputs)


def _date(stage: Stage, inputs: list[str], prefix: str) -> Made:

    outputs = [tuple(f"{each}_{part}" for part in stage.parts) for each in _numbered(inputs, prefix)]
    made = [
        DateParts(inputCol=column, outputCols=list(columns), parts=list(stage.parts), since=stage.since.isoformat())
        for column, columns in zip(inputs, outputs, strict=True)
    ]
    return made, outputs


def _text(stage: Stage, inputs: list[str], prefix: str) -> Made:

    made, outputs = text_stages(stage, inputs, prefix)
    return made, _each(outputs)


_STAGES = {"standardise": _standardise, "impute": _impute, "index": _index, "date": _date} | dict.fromkeys(
    TEXT_STAGES, _text
)


def text_stages(stage: Stage, inputs: Sequence[str], prefix: str) -> tuple[list[Any], list[str]]:
    """The Spark ML stages for some columns of text, and the columns of vectors they end in. Runs on the driver.

    Words are counted, and so may be pairs of neighbours, one of which is the beginning and the first word: how a text
    begins often says what it is about. Counts may become 1 + ln n, and each word or pair is weighted by
    ln((N + 1) / (n + 1)), where n of the N training rows have it. ``hash_words`` keeps them in their order, by their
    hashes alone.
    """
    outputs = [f"{prefix}_{index}" for index in range(len(inputs))]
    parts: list[Any] = []
    for column, output in zip(inputs, outputs, strict=True):
        words, counts = f"{output}_words", f"{output}_counts"
        parts.append(RegexTokenizer(inputCol=column, outputCol=words, pattern=BETWEEN_WORDS))
        if stage.bigrams:
            started, pairs, both = f"{output}_started", f"{output}_pairs", f"{output}_terms"
            parts.append(
                SQLTransformer(statement=f"SELECT *, concat(array('{START}'), {words}) AS {started} FROM __THIS__")
            )
            parts.append(NGram(inputCol=started, outputCol=pairs, n=2))
            parts.append(SQLTransformer(statement=f"SELECT *, concat({words}, {pairs}) AS {both} FROM __THIS__"))
            words = both
        if stage.kind == "hash_words":
            length = stage.dimensions
            parts.append(WordHashes(inputCol=words, outputCol=output, numFeatures=stage.vocabulary, length=length))
            parts.append(VectorSizeHint(inputCol=output, size=length, handleInvalid="optimistic"))
            continue
        if stage.kind == "hash_text":
            parts.append(HashingTF(inputCol=words, outputCol=counts, numFeatures=stage.dimensions))
        else:
            parts.append(_Vocabulary(stage, words, counts))
        weighted = counts
        if stage.sublinear:
            weighted = f"{output}_log"
            parts.append(LogCounts(inputCol=counts, outputCol=weighted))
        # A vocabulary has left rare words out already; hashes can only be given no weight.
        rare = stage.minimum_documents if stage.kind == "hash_text" else 0
        parts.append(_DocumentFrequencies(IDF(inputCol=counts, outputCol=output, minDocFreq=rare), weighted))
    return parts, outputs


class _Vocabulary(Estimator[CountVectorizerModel]):
    """Spark's ``CountVectorizer``, but words that are equally frequent have an order that is always the same."""

    def __init__(self, stage: Stage, words: str, counts: str) -> None:
        super().__init__()
        self._stage, self._words, self._counts = stage, words, counts

    def _fit(self, dataset: DataFrame) -> CountVectorizerModel:
        found = (
            dataset.select(sf.explode(sf.array_distinct(self._words)).alias("word"))
            .groupBy("word")
            .count()
            .where(sf.col("count") >= self._stage.minimum_documents)
            .orderBy(sf.desc("count"), "word")
            .limit(self._stage.vocabulary)
            .collect()
        )
        return CountVectorizerModel.from_vocabulary([row.word for row in found], self._words, self._counts)


class _DocumentFrequencies(Estimator[IDFModel]):
    """An ``IDF`` that is fitted on one column and weights another one with the same words."""

    def __init__(self, idf: IDF, weighted: str) -> None:
        super().__init__()
        self._idf, self._weighted = idf, weighted

    def _fit(self, dataset: DataFrame) -> IDFModel:
        return self._idf.fit(dataset).setInputCol(self._weighted)


class LogCounts(Transformer, HasInputCol, HasOutputCol, DefaultParamsReadable[Any], DefaultParamsWritable):
    """Each count n of a vector becomes 1 + ln n. Runs on the driver; the work is Spark's, without Python."""

    @keyword_only
    def __init__(self, *, inputCol: str | None = None, outputCol: str | None = None) -> None:  # noqa: N803
        super().__init__()
        self._set(**self._input_kwargs)  # type: ignore[attr-defined]

    def _transform(self, dataset: DataFrame) -> DataFrame:
        counts = sf.col(f"`{self.getInputCol()}`")
        parts = sf.unwrap_udt(counts)
        weights = sf.transform(parts["values"], lambda n: sf.when(n > 1, 1 + sf.log(n)).otherwise(n))
        names = "type", "size", "indices"
        changed = sf.struct(*[parts[name].alias(name) for name in names], weights.alias("values"))
        # Spark has no function that makes a sparse vector but this reader; most short texts have no word twice.
        vector = StructType([StructField("vector", VectorUDT())])
        rebuilt = sf.from_json(sf.to_json(sf.struct(changed.alias("vector"))), vector)["vector"]
        repeated = sf.exists(parts["values"], lambda n: n > 1)
        return dataset.withColumn(self.getOutputCol(), sf.when(repeated, rebuilt).otherwise(counts))


class WordHashes(
    Transformer, HasInputCol, HasOutputCol, HasNumFeatures, DefaultParamsReadable[Any], DefaultParamsWritable
):
    """The first ``length`` words of a text, each as its hash from 1 to ``numFeatures``; zeros follow the last one.

    A hash needs no vocabulary; words that share one are one word for a model (Weinberger et al., 2009, arXiv
    0902.2206). Runs on the driver; the work is Spark's, without Python.
    """

    length: Param[int] = Param(Params._dummy(), "length", "words that are kept", TypeConverters.toInt)

    @keyword_only
    def __init__(
        self,
        *,
        inputCol: str | None = None,  # noqa: N803
        outputCol: str | None = None,  # noqa: N803
        numFeatures: int | None = None,  # noqa: N803
        length: int | None = None,
    ) -> None:
        super().__init__()
        self._set(**self._input_kwargs)  # type: ignore[attr-defined]

    def _transform(self, dataset: DataFrame) -> DataFrame:
        length, largest = self.getOrDefault(self.length), self.getNumFeatures()
        words = sf.slice(f"`{self.getInputCol()}`", 1, length)
        hashes = sf.transform(words, lambda word: (sf.pmod(sf.xxhash64(word), sf.lit(largest)) + 1).cast("double"))
        padding = sf.array_repeat(sf.lit(0.0), sf.lit(length) - sf.size(words))
        return dataset.withColumn(self.getOutputCol(), array_to_vector(sf.concat(hashes, padding)))


_DAY = 24 * 60 * 60
_EPOCH = date(1970, 1, 1)


class DateParts(Transformer, HasInputCol, HasOutputCols, DefaultParamsReadable[Any], DefaultParamsWritable):
    """Each ``part`` of a date or a time as a double in an output column; null where it is null.

    The calendar is the Gregorian one, weeks and their days are those of ISO 8601 (Monday is 1), and ``age`` is in days
    since ``since``. A ``timestamp`` is taken in UTC, whatever the zones of session and machine; one without a zone
    (``timestamp_ntz``) is taken as it stands. Runs on the driver; the work is Spark's, without Python.
    """

    parts: Param[Any] = Param(Params._dummy(), "parts", "what is made", TypeConverters.toListString)
    since: Param[str] = Param(Params._dummy(), "since", "the date that ages count from", TypeConverters.toString)

    @keyword_only
    def __init__(
        self,
        *,
        inputCol: str | None = None,  # noqa: N803
        outputCols: list[str] | None = None,  # noqa: N803
        parts: list[str] | None = None,
        since: str | None = None,
    ) -> None:
        super().__init__()
        self._set(**self._input_kwargs)  # type: ignore[attr-defined]

    def _transform(self, dataset: DataFrame) -> DataFrame:
        name = self.getInputCol()
        days, seconds = _days_and_seconds(sf.col(identifier(name)), dataset.schema[name].dataType)
        day = sf.date_from_unix_date(days)
        before = (date.fromisoformat(self.getOrDefault(self.since)) - _EPOCH).days
        made = {
            "year": sf.year(day),
            "quarter": sf.quarter(day),
            "month": sf.month(day),
            "week": sf.weekofyear(day),
            "day": sf.dayofmonth(day),
            "day_of_week": sf.weekday(day) + 1,
            "day_of_year": sf.dayofyear(day),
            "hour": sf.floor(seconds / 3600),
            "minute": sf.floor(seconds / 60) % 60,
            "second": seconds % 60,
            "age": (days - before) + seconds / _DAY,
        }
        columns = zip(self.getOutputCols(), self.getOrDefault(self.parts), strict=True)
        return dataset.select("*", *[made[part].cast("double").alias(column) for column, part in columns])


def _days_and_seconds(value: Column, kind: DataType) -> tuple[Column, Column]:
    """Whole days since 1970, and whole seconds since midnight: Spark's own functions would ask for the session's zone.

    Those of a ``timestamp_ntz`` do not.
    """
    if isinstance(kind, DateType):
        return sf.unix_date(value), sf.when(value.isNotNull(), sf.lit(0))
    if isinstance(kind, TimestampType):
        seconds = sf.unix_seconds(value)
        of_day = sf.pmod(seconds, sf.lit(_DAY))
        return ((seconds - of_day) / _DAY).cast("int"), of_day
    return sf.unix_date(value.cast("date")), sf.hour(value) * 3600 + sf.minute(value) * 60 + sf.second(value)


# The files of then name the modules that these classes were in.
LogCounts.__module__ = WordHashes.__module__ = "sparkdl.data.text"
DateParts.__module__ = "sparkdl.data.dates"
