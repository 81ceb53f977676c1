"""Seconds of ``sparkdl.prepare`` on JPEG files in a column, beside a ``mapInArrow`` written by hand that decodes them.

That one decodes and resizes as ``prepare`` does, and writes Parquet: as rows come, or in random order, as a dataset
that is shuffled once has them. ``prepare`` also splits, counts, fingerprints, cuts equal row groups and hashes every
file.
"""

import io
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import sparkdl
from benchmarks.images import session
from benchmarks.report import Report, Target
from benchmarks.turns import seconds_in_turn

__all__ = ["run"]

PICTURES = 3_000
SIDES = 500, 375
"""Width and height in pixels, as those of ImageNet have on average."""
RESIZED = 64, 64, 3
DIFFERENT = 100
"""Pictures that differ in more than the number behind their last byte: to make one takes as long as to decode it."""
FILES = 8
ROUNDS = 3


def run(pictures: int = PICTURES, rounds: int = ROUNDS) -> Report:
    """Measure all ways in turn, round by round; the first round only warms up. Runs on the driver."""
    with session() as spark, TemporaryDirectory() as folder:
        rows = _table(spark, pictures, Path(folder))
        shuffled = rows.repartition(FILES, sf.rand()).mapInArrow(_decode, "content binary, label bigint")
        ways: dict[str, Callable[[], None]] = {
            "sparkdl.prepare": lambda: _prepare(rows, folder),
            "mapInArrow by hand": lambda: _write(rows.mapInArrow(_decode, "content binary, label bigint"), folder),
            "mapInArrow by hand, rows shuffled": lambda: _write(shuffled, folder),
        }
        seconds = seconds_in_turn(ways, rounds)
    ours, _, by_hand = map(median, seconds.values())
    return Report(
        title=f"pictures: {pictures:,} JPEGs of {SIDES[0]} x {SIDES[1]} in a column, to {RESIZED[0]} x {RESIZED[1]}",
        columns=["way", "s", "fastest, slowest", "images/s"],
        rows=[
            [way, median(each), f"{min(each):.3g}, {max(each):.3g}", pictures / median(each)]
            for way, each in seconds.items()
        ],
        targets=[Target("over mapInArrow by hand, rows shuffled", ours / by_hand, 1.5, at_most=True)],
        note=f"Medians of {rounds} rounds after a warm-up, taken in turn.",
    )


def _table(spark: SparkSession, pictures: int, folder: Path) -> DataFrame:
    """JPEG files with labels, as Parquet: what lies behind a file's end is in nobody's way, and makes each another."""
    random = np.random.default_rng(0)
    files = [_jpeg(random) for _ in range(min(pictures, DIFFERENT))]
    (folder / "raw").mkdir()
    for part, numbers in enumerate(np.array_split(np.arange(pictures), FILES)):
        content = [files[number % len(files)] + int(number).to_bytes(8, "big") for number in numbers]
        table = pa.table({"content": pa.array(content, pa.binary()), "label": numbers % 10})
        pq.write_table(table, folder / "raw" / f"{part}.parquet", compression="none")
    return spark.read.parquet(str(folder / "raw"))


def _jpeg(random: np.random.Generator) -> bytes:
    """A picture without a meaning, as smooth as photographs are."""
    blocks = Image.fromarray(random.integers(0, 256, (30, 40, 3), np.uint8))
    content = io.BytesIO()
    blocks.resize(SIDES, Image.Resampling.BICUBIC).save(content, "JPEG", quality=90)
    return content.getvalue()


def _decode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What one would write: without a look at bad rows, orientation, or memory."""
    height, width, _ = RESIZED
    for batch in batches:
        pixels = []
        for content in batch.column(0).to_pylist():
            with Image.open(io.BytesIO(content)) as image:
                pixels.append(image.convert("RGB").resize((width, height), Image.Resampling.BILINEAR).tobytes())
        yield pa.RecordBatch.from_arrays([pa.array(pixels, pa.binary()), batch.column(1)], names=["content", "label"])


def _prepare(rows: DataFrame, folder: str) -> None:
    shutil.rmtree(f"{folder}/prepared", ignore_errors=True)
    split = sparkdl.Split(fractions={"validation": 0.1, "test": 0.1})
    settings = sparkdl.Prepare(
        output=f"{folder}/prepared", features=["content"], image_shape=list(RESIZED), split=split
    )
    sparkdl.prepare(rows, settings)


def _write(rows: DataFrame, folder: str) -> None:
    rows.write.mode("overwrite").parquet(f"{folder}/copy")
