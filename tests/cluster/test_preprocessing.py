"""Stages without Spark give the same bits as the pipelines of pyspark.ml that they were read from."""

# ruff: noqa: RUF001 - letters that look like others are what is tested

import string
import unicodedata
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.feature import (
    PCA,
    CountVectorizer,
    HashingTF,
    NGram,
    Normalizer,
    RegexTokenizer,
    StandardScaler,
    StringIndexer,
    Tokenizer,
    VectorAssembler,
)
from pyspark.ml.functions import vector_to_array
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from sparkdl.data.preparing.features import choose_inputs
from sparkdl.data.preparing.fitting import fit, look_at
from sparkdl.errors import OnlySparkError
from sparkdl.preprocessing import STAGES_FILE, as_matrix, read_pipeline
from sparkdl.settings import Prepare, Stage

from ..applied_stages import raw_columns
from ..spark_pipelines import build_pipeline

ROWS = 300
ODD_TEXTS = [
    "",
    " ",
    "  Two  spaces\tand\na line ",
    "ΌΔΟΣ ὈΔΥΣΣΕΎΣ Σ ΑΣ.Α Σ'Α Α'Σ ΑΣ\u0301",
    "İstanbul IĞDIR ŞIŞLI",
    "Straße ẞ ǅ ǆ ﬁ ﬂ",
    "naïve cafe\u0301 e\u0301té",
    "क्षत्रिय தமிழ் ภาษาไทย 中文 日本語 한국어",
    "snake_case a‿b ⁀ ﹍x x٣y Ⅷ ⅷ ½ ² ① Ⓐⓐ 🄰 🅐",
    "zero\u200dwidth\u200cjoiners\u200bspace\ufeffmark \u00adsoft\u2060",
    "👩‍👩‍👧 emoji 𝒳𝟗 𐐀𐐨 𞤀𞤢",
    "don't can’t well-known 3.14 1,000 a.b@c.d",
    "nul\x00inside\x0bvertical\x0cfeed\x85next\u2028line\u3000wide",
    "𐒰𐓘 ꭰ Ꭰ Ა ა ᲀ ℵ Ω K Å",
]


def made(model: PipelineModel, rows: DataFrame, column: str = "features") -> np.ndarray[Any, Any]:
    """What Spark makes of rows, float32."""
    found = model.transform(rows).select(vector_to_array(F.col(column), "float32").alias("made")).collect()
    return np.array([row.made for row in found], np.float32)


def applied(
    model: PipelineModel, rows: DataFrame, raw: list[str], folder: Path, column: str = "features"
) -> np.ndarray[Any, Any]:
    """What the stages make of the same rows, read from what Spark has saved."""
    model.write().overwrite().save(str(folder))
    return as_matrix(read_pipeline(folder).transform(raw_columns(rows, raw), column))


def assert_same_bits(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> None:
    assert one.shape == other.shape
    different = (one.view(np.uint32) != other.view(np.uint32)) & ~(np.isnan(one) & np.isnan(other))
    rows, places = np.nonzero(different)
    shown = [(row, place, one[row, place], other[row, place]) for row, place in zip(rows[:5], places[:5], strict=True)]
    assert not len(rows), f"{len(rows)} values: {shown}"


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    """Random rows with nulls, NaN, many types, odd texts, and a name with a dot."""
    random = np.random.default_rng(7)

    def some(values: list[Any], *, missing: float = 0.1) -> list[Any]:
        return [
            None if random.random() < missing else values[index] for index in random.integers(len(values), size=ROWS)
        ]

    words = ["the", "The", "Spark", "spark!", "deep-net", "ΣΑΣ", "été", "x_y", "42"]
    texts = [" ".join(random.choice(words, random.integers(0, 12))) for _ in range(ROWS - len(ODD_TEXTS))]
    floats = [0.0, -0.0, float("nan"), 1e-320, 1e300, 3.4e38, 2e-3, 1e21, 123456.789, *random.normal(size=40).tolist()]
    table = {
        "whole": some([-5, 0, 7, 2**31 - 1]),
        "long": some([2**53 + 1, -(2**60), 3]),
        "number": some(floats),
        "a.number": some(random.normal(3, 20, 50).tolist()),
        "single": some([0.1, 1 / 3, 1e10, float("nan")]),
        "money": some(["0.10", "12.35", "-99999.99", "12345678901234.56"]),
        "yes": random.integers(2, size=ROWS).astype(bool).tolist(),
        "category": some(["red", "green", "blue", "", "Ünï"]),
        "text": [*ODD_TEXTS, *texts],
    }
    schema = (
        "whole int, long bigint, number double, `a.number` double, single double, money string, yes boolean,"
        " category string, text string"
    )
    made = spark.createDataFrame(list(zip(*table.values(), strict=True)), schema)
    casts = [F.col("single").cast("float"), F.col("money").cast("decimal(18,2)")]
    return made.withColumns({"single": casts[0], "money": casts[1], "label": F.lit(1)}).coalesce(1).localCheckpoint()


def prepared(rows: DataFrame, folder: Path, **settings: Any) -> tuple[PipelineModel, list[str]]:
    """The pipeline that ``prepare`` has fitted before its stages were its own, on the first half of the rows.

    Those of now, fitted on the same rows, must make the same of all rows.
    """
    chosen = Prepare(output=str(folder), label="label", **settings)
    inputs = choose_inputs(rows, chosen)
    assert inputs.stages
    raw, training = list(inputs.raw_columns), rows.limit(ROWS // 2)
    types = {name: rows.schema[name].dataType for name in raw}
    unit_norm = bool(chosen.unit_norm)
    old = build_pipeline(types, chosen.stages, inputs.column, unit_norm=unit_norm, widths=inputs.widths)
    model = old.fit(training)
    fitted = fit(inputs.stages, partial(look_at, training, inputs.raw_columns))
    (folder / "stages").mkdir(parents=True)
    (folder / "stages" / STAGES_FILE).write_bytes(fitted.as_json())
    found = as_matrix(read_pipeline(folder / "stages").transform(raw_columns(rows, raw), inputs.column))
    np.testing.assert_allclose(found, made(model, rows), rtol=2e-7, atol=1e-12)
    return model, raw


def test_numbers_and_categories_of_all_types_become_the_same_vectors(rows: DataFrame, tmp_path: Path) -> None:
    numbers = ["whole", "long", "number", "a.number", "single", "money"]
    model, raw = prepared(
        rows,
        tmp_path / "dataset",
        features=[*numbers, "yes", "category"],
        stages=[
            Stage(kind="impute", columns=numbers),
            Stage(kind="index", columns=["category", "a.number"]),
            Stage(kind="standardise", columns=["whole", "number", "money", "yes"]),
        ],
    )
    assert_same_bits(applied(model, rows, raw, tmp_path / "saved"), made(model, rows))


def test_numbers_as_categories_and_the_length_of_a_vector(rows: DataFrame, tmp_path: Path) -> None:
    numbers = ["whole", "long", "number", "single", "money"]
    model, raw = prepared(
        rows, tmp_path / "dataset", features=numbers, stages=[Stage(kind="index", columns=numbers)], unit_norm=True
    )
    assert_same_bits(applied(model, rows, raw, tmp_path / "saved"), made(model, rows))


@pytest.mark.parametrize("bigrams", [False, True])
@pytest.mark.parametrize("sublinear", [False, True])
def test_texts_become_the_same_counts_and_hashes(
    rows: DataFrame, tmp_path: Path, bigrams: bool, sublinear: bool
) -> None:
    options = {"bigrams": bigrams, "sublinear": sublinear}
    rows = rows.withColumn("again", F.col("text"))
    model, raw = prepared(
        rows,
        tmp_path / "dataset",
        features=["text", "again", "number"],
        stages=[
            Stage(kind="hash_text", columns=["text"], dimensions=512, **options),
            Stage(kind="count_text", columns=["again"], minimum_documents=1, **options),
            Stage(kind="impute", columns=["number"]),
        ],
        unit_norm=True,
    )
    assert_same_bits(applied(model, rows, raw, tmp_path / "saved"), made(model, rows))


def test_words_in_their_order_become_the_same_hashes(rows: DataFrame, spark: SparkSession, tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    letters = string.ascii_letters + "éΩ中𝒳"
    long_words = ["".join(random.choice(list(letters), length)) for length in range(1, 120)]
    texts = [*ODD_TEXTS, *long_words, " ".join(long_words[:9])]
    rows = spark.createDataFrame([(text, 1) for text in texts], "text string, label int").coalesce(1)
    model, raw = prepared(
        rows,
        tmp_path / "dataset",
        features=["text"],
        stages=[Stage(kind="hash_words", columns=["text"], dimensions=6, vocabulary=50_000)],
    )
    assert_same_bits(applied(model, rows, raw, tmp_path / "saved"), made(model, rows))


def test_every_character_is_part_of_a_word_or_between_words_as_in_java(spark: SparkSession, tmp_path: Path) -> None:
    """But for letters that are newer than the Unicode of one of the two, which takes them for no letters."""
    points = [point for point in range(1, 0x20000) if not 0xD800 <= point < 0xE000]
    texts = [f"a{chr(point)}b" for point in points]
    rows = spark.createDataFrame(pd.DataFrame({"text": texts})).coalesce(1)
    cut = RegexTokenizer(inputCol="text", outputCol="words", pattern=r"(?U)\W+")
    Pipeline(stages=[cut]).fit(rows).write().overwrite().save(str(tmp_path / "saved"))
    expected = [row.words for row in cut.transform(rows).select("words").collect()]
    found = read_pipeline(tmp_path / "saved").transform({"text": pa.array(texts)}, "words").to_pylist()  # type: ignore[union-attr]
    different = [point for point, one, other in zip(points, found, expected, strict=True) if one != other]
    assert [hex(each) for each in different if unicodedata.ucd_3_2_0.category(chr(each)) != "Cn"] == []
    # Java 17 knows Unicode 13: what is a letter since then.
    assert len(different) < 1_000 and min(different, default=0x870) >= 0x870


def test_a_pipeline_of_the_users_own_is_applied_without_spark_if_its_stages_are_known(
    rows: DataFrame, tmp_path: Path
) -> None:
    stages = [
        StringIndexer(inputCol="category", outputCol="place", handleInvalid="keep"),
        Tokenizer(inputCol="text", outputCol="words"),
        NGram(inputCol="words", outputCol="threes", n=3),
        HashingTF(inputCol="threes", outputCol="hashed", numFeatures=64, binary=True),
        CountVectorizer(inputCol="words", outputCol="counts", binary=True),
        VectorAssembler(inputCols=["hashed", "counts", "place"], outputCol="beside", handleInvalid="keep"),
        StandardScaler(inputCol="beside", outputCol="scaled"),
        Normalizer(inputCol="scaled", outputCol="features"),
    ]
    nested = Pipeline(stages=[*stages[:4], Pipeline(stages=stages[4:])])
    model = nested.fit(rows.limit(100))
    assert_same_bits(applied(model, rows, ["category", "text"], tmp_path / "saved"), made(model, rows))


def test_a_stage_that_is_sparks_alone_is_named(rows: DataFrame, tmp_path: Path) -> None:
    beside = VectorAssembler(inputCols=["whole", "yes"], outputCol="beside", handleInvalid="keep")
    known = rows.fillna(0)
    for place, (last, says) in enumerate(
        [
            (PCA(k=1, inputCol="beside", outputCol="features"), "the stage PCAModel of the model's preprocessing"),
            (Normalizer(inputCol="beside", outputCol="features", p=1.0), "the stage Normalizer with p 1.0 of"),
        ]
    ):
        Pipeline(stages=[beside, last]).fit(known).write().overwrite().save(str(tmp_path / str(place)))
        with pytest.raises(OnlySparkError, match=says):
            read_pipeline(tmp_path / str(place))
