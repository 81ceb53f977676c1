"""Texts become weighted counts of words, or the hashes of their words: the stages that are for text."""

from collections.abc import Sequence
from typing import Any

from pyspark import keyword_only
from pyspark.ml import Estimator, Transformer
from pyspark.ml.feature import (
    IDF,
    CountVectorizerModel,
    HashingTF,
    IDFModel,
    NGram,
    RegexTokenizer,
    SQLTransformer,
    VectorSizeHint,
)
from pyspark.ml.functions import array_to_vector
from pyspark.ml.linalg import VectorUDT
from pyspark.ml.param import Param, Params, TypeConverters
from pyspark.ml.param.shared import HasInputCol, HasNumFeatures, HasOutputCol
from pyspark.ml.util import DefaultParamsReadable, DefaultParamsWritable
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import StructField, StructType

from sparkdl.errors import DataError
from sparkdl.sessions import is_remote
from sparkdl.settings import Stage

__all__ = ["BETWEEN_WORDS", "LogCounts", "WordHashes", "text_stages"]

BETWEEN_WORDS = r"(?U)\W+"
"""What texts are cut at: anything but letters, digits and underscores, of any alphabet."""
START = "^"
"""Stands before the first word where pairs are counted; no word can be taken for it."""


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
        if not found:
            raise DataError(
                f"no word is in {self._stage.minimum_documents} training rows; lower `minimum_documents`, or look "
                f"at the text in {', '.join(map(repr, self._stage.columns))}"
            )
        if is_remote(dataset.sparkSession):
            return CountVectorizerModel.from_vocabulary([row.word for row in found], self._words, self._counts)
        # This does the same in classic Spark, but hands words to the JVM one by one: 10 s for 45,000.
        newline = dataset.sparkSession.sparkContext._jvm.java.util.regex.Pattern.compile("\n")  # type: ignore[union-attr]
        words = newline.split("\n".join(row.word for row in found))
        name = "org.apache.spark.ml.feature.CountVectorizerModel"
        model: CountVectorizerModel = CountVectorizerModel._create_from_java_class(name, words)  # type: ignore[attr-defined]
        return model.setInputCol(self._words).setOutputCol(self._counts)


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
