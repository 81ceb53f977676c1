"""Seconds of ``sparkdl.prepare`` beside what Spark takes to copy the same table: as it is, and in random order.

The table is one of numbers, of few very wide rows, of texts, and of images. On the classic stack Petastorm's converter,
which copies in the order of the source, is a third one.

A copy in random order is the least that a shuffled dataset can cost Spark; of the two usual ways the faster one counts.
``prepare`` also splits, checks every value, counts, fingerprints, cuts equal row groups and hashes every file.
"""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import sparkdl
from benchmarks.images import SHAPE, images, session
from benchmarks.report import Report, Target
from benchmarks.turns import seconds_in_turn

__all__ = ["FLOATS", "numbers_and_texts", "run", "stages_for_all"]

ROWS, FLOATS = 3_000_000, 20
CATEGORIES = {"shop": 1_000, "country": 50}
"""Columns of text, and how many values each has."""
WIDE_ROWS, WIDE_COLUMNS = 600, 3_000
TEXTS, PICTURES = 30, 50
"""How many rows of numbers stand for one text, and for one image of 28 x 28."""
FEWEST = 100
"""Rows of which each split is likely to have some."""
WORDS = 1_000
"""Of the vocabulary that texts are counted by."""
ROUNDS = 3
CONVERTER = "Petastorm's make_spark_converter"
FILES = 8
"""Of the copy that is cut by a random key."""


def run(rows: int = ROWS, wide_columns: int = WIDE_COLUMNS, rounds: int = ROUNDS, *, warms_up: bool = True) -> Report:
    """Measure all ways in turn, round by round, after one that only warms up. Runs on the driver."""
    with session() as spark, TemporaryDirectory() as folder:
        table, wide = numbers_and_texts(spark, rows, Path(folder)), _wide(spark, wide_columns, Path(folder))
        numbers = table.drop(*CATEGORIES)
        names = [f"x{number}" for number in range(FLOATS)]
        files, wide_files = (
            sparkdl.Source(format="parquet", path=f"{folder}/{name}") for name in ("raw", "wide.parquet")
        )
        texts = _texts(spark, max(rows // TEXTS, FEWEST), Path(folder))
        pictures = _pictures(spark, max(rows // PICTURES, FEWEST), Path(folder))
        ways = {
            "sparkdl.prepare": lambda: _prepare(files, folder, features=names),
            "sparkdl.prepare, impute, standardise, two index": lambda: _prepare(files, folder, stages_for_all()),
            "sparkdl.prepare, a DataFrame": lambda: _prepare(numbers, folder),
            "Spark's copy": lambda: _write(numbers, folder),
            "Spark's copy, orderBy(rand())": lambda: _write(numbers.orderBy(sf.rand()), folder),
            "Spark's copy, repartition by rand()": lambda: _write(_repartitioned(numbers), folder),
            f"sparkdl.prepare, {WIDE_ROWS} rows of {wide_columns:,} columns": lambda: _prepare(wide_files, folder),
            f"Spark's copy, {WIDE_ROWS} rows of {wide_columns:,} columns": lambda: _write(wide, folder),
            "sparkdl.prepare, texts, count_text": lambda: _prepare(texts, folder, _words()),
            "Spark's copy of the texts, repartition by rand()": lambda: _write(_repartitioned(texts), folder),
            "sparkdl.prepare, images": lambda: _prepare(pictures, folder, image="image", image_shape=list(SHAPE)),
            "Spark's copy of the images, repartition by rand()": lambda: _write(_repartitioned(pictures), folder),
        }
        with _converter(spark, folder) as convert:
            if convert:
                ways[CONVERTER] = lambda: convert(numbers)
                ways[f"{CONVERTER}, {WIDE_ROWS} rows of {wide_columns:,} columns"] = lambda: convert(wide)
                ways[f"{CONVERTER}, texts"] = lambda: convert(texts)
                ways[f"{CONVERTER}, images"] = lambda: convert(pictures)
            seconds = seconds_in_turn(ways, rounds, warms_up=warms_up)
    ours, staged, _, _, ordered, cut, wide_ours, *_ = seconds.values()
    shuffled = min(ordered, cut, key=median)
    return Report(
        title=f"prepare: {rows:,} rows of {FLOATS} floats, and wide rows",
        columns=["way", "s", "fastest, slowest"],
        rows=[[way, median(each), f"{min(each):.3g}, {max(each):.3g}"] for way, each in seconds.items()],
        targets=[
            Target("over Spark's copy in random order", median(ours) / median(shuffled), 1.5, at_most=True),
            Target("the same with stages", median(staged) / median(shuffled), 2.5, at_most=True),
            Target(f"{WIDE_ROWS} rows of {wide_columns:,} columns, s", median(wide_ours), 6.0, at_most=True),
        ],
        note=f"Medians of {rounds} rounds after a warm-up, taken in turn.",
    )


def numbers_and_texts(spark: SparkSession, rows: int, folder: Path) -> DataFrame:
    """Numbers, of which the first column lacks some, categories and a label, as Parquet files."""
    names = [f"x{number}" for number in range(FLOATS)]
    drawn = [sf.randn(number).cast("float").alias(name) for number, name in enumerate(names)]
    texts = [
        sf.concat(sf.lit(f"{name} "), (sf.rand(number) * count).cast("int").cast("string")).alias(name)
        for number, (name, count) in enumerate(CATEGORIES.items())
    ]
    label = (sf.rand(FLOATS) < 0.5).cast("int").alias("label")
    spark.range(rows).select(*drawn, *texts, label).write.parquet(str(folder / "raw"))
    return spark.read.parquet(str(folder / "raw"))


def _wide(spark: SparkSession, columns: int, folder: Path) -> DataFrame:
    """Few rows of very many columns: as of spectra, genes, or one column for each of many answers."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    random = np.random.default_rng(0)
    values = {f"x{number}": random.standard_normal(WIDE_ROWS, np.float32) for number in range(columns)}
    pq.write_table(pa.table(values | {"label": random.integers(0, 2, WIDE_ROWS)}), folder / "wide.parquet")
    return spark.read.parquet(str(folder / "wide.parquet"))


def _texts(spark: SparkSession, rows: int, folder: Path) -> DataFrame:
    """Sentences of twenty words, of ten thousand, and a label."""
    words = [sf.concat(sf.lit("w"), (sf.rand(place) * sf.rand(place) * 10_000).cast("int")) for place in range(20)]
    label = (sf.rand(20) < 0.5).cast("int").alias("label")
    spark.range(rows).select(sf.concat_ws(" ", *words).alias("text"), label).write.parquet(str(folder / "texts"))
    return spark.read.parquet(str(folder / "texts"))


def _pictures(spark: SparkSession, rows: int, folder: Path) -> DataFrame:
    images(spark, rows).write.parquet(str(folder / "images"))
    return spark.read.parquet(str(folder / "images"))


def _words() -> list[sparkdl.Stage]:
    return [sparkdl.Stage(kind="count_text", columns=["text"], vocabulary=WORDS)]


def stages_for_all() -> list[sparkdl.Stage]:
    """Two for the numbers, one for the categories."""
    names = [f"x{number}" for number in range(FLOATS)]
    return [
        sparkdl.Stage(kind="impute", columns=names),
        sparkdl.Stage(kind="standardise", columns=names),
        sparkdl.Stage(kind="index", columns=list(CATEGORIES)),
    ]


def _prepare(
    rows: DataFrame | sparkdl.Source, folder: str, stages: list[sparkdl.Stage] | None = None, **settings: Any
) -> None:
    shutil.rmtree(f"{folder}/prepared", ignore_errors=True)
    split = sparkdl.Split(fractions={"validation": 0.1, "test": 0.1})
    sparkdl.prepare(rows, sparkdl.Prepare(output=f"{folder}/prepared", split=split, stages=stages or [], **settings))


def _repartitioned(rows: DataFrame) -> DataFrame:
    keyed = rows.withColumn("key", sf.rand())
    return keyed.repartition(FILES, "key").sortWithinPartitions("key").drop("key")


def _write(rows: DataFrame, folder: str) -> None:
    rows.write.mode("overwrite").parquet(f"{folder}/copy")


@contextmanager
def _converter(spark: SparkSession, folder: str) -> Iterator[Callable[[DataFrame], None] | None]:
    """What materialises rows for Petastorm's own loaders; none where Petastorm is not installed or has no such."""
    try:
        from petastorm.spark import SparkDatasetConverter, make_spark_converter
    except ImportError:
        yield None
        return
    spark.conf.set(SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF, f"file://{folder}/converted")

    def convert(rows: DataFrame) -> None:
        make_spark_converter(rows.withColumn("turn", sf.lit(time.time_ns()))).delete()  # which caches by the plan

    try:
        yield convert
    finally:
        spark.conf.unset(SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF)
