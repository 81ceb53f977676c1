"""Made-up images for benchmarks that need a dataset: the shape of Fashion-MNIST, contents of no meaning."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import sparkdl

__all__ = ["image_dataset", "images", "session"]

SHAPE = (28, 28)
CLASSES = 10


def images(spark: SparkSession, rows: int) -> DataFrame:
    """``rows`` random images (binary) with labels; the same every time they are computed."""
    pixels = SHAPE[0] * SHAPE[1]

    def draw(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            numbers = batch.column(0).to_numpy()
            random = np.random.default_rng(int(numbers[0]))
            content = [row.tobytes() for row in random.integers(0, 256, (len(numbers), pixels), np.uint8)]
            labels = pa.array(numbers % CLASSES)
            yield pa.RecordBatch.from_arrays([pa.array(content, pa.binary()), labels], names=["image", "label"])

    return spark.range(rows).mapInArrow(draw, "image binary, label bigint")


@contextmanager
def session() -> Iterator[SparkSession]:
    """The running Spark, or an embedded one that is stopped afterwards."""
    running = SparkSession.getActiveSession()
    spark = running or sparkdl.get_session()
    try:
        yield spark
    finally:
        if running is None:
            spark.stop()


@contextmanager
def image_dataset(rows: int) -> Iterator[tuple[SparkSession, sparkdl.Dataset]]:
    """Spark and a prepared dataset of so many training rows, gone afterwards."""
    with session() as spark, TemporaryDirectory() as folder:
        settings = sparkdl.Prepare(
            output=f"{folder}/dataset", image="image", image_shape=list(SHAPE), split=sparkdl.Split(fractions={})
        )
        yield spark, sparkdl.prepare(images(spark, rows), settings)
