"""Images for benchmarks: Fashion-MNIST, or made-up ones of its shape, whose contents have no meaning."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import sparkdl

__all__ = ["SHAPE", "fashion_mnist", "image_dataset", "images", "session"]

RAW = Path("output/raw/fashion-mnist")
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
def session(settings: sparkdl.Cluster | None = None) -> Iterator[SparkSession]:
    """The running Spark, or an embedded one with these settings that is stopped afterwards."""
    running = SparkSession.getActiveSession()
    spark = running or sparkdl.get_session(settings)
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


def fashion_mnist(
    spark: SparkSession, output: str, *, fractions: dict[str, float], num_ranks: int, part: float = 1.0
) -> sparkdl.Dataset:
    """Fashion-MNIST as a prepared dataset, of about such a part of its training rows. Runs on the driver.

    ``fractions`` of these go to splits beside ``train`` and ``test``.
    """
    sparkdl.fetch("fashion-mnist", RAW)
    source = sparkdl.Source(format="idx", path=str(RAW))
    rows = sparkdl.open_source(source, spark)
    if part < 1:
        rows = rows.where(f"split != 'train' or rand(0) < {part}")
    settings = sparkdl.Prepare(
        source=source,
        output=output,
        image="image",
        split=sparkdl.Split(column="split", fractions=fractions),
        num_ranks=num_ranks,
    )
    return sparkdl.prepare(rows, settings, spark=spark)
