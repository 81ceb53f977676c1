"""Parquet files that stay where they are beside a copy of them: seconds to prepare, and rows/s that a rank reads.

The table is that of ``prepare``: numbers and categories, with all stages.
"""

import shutil
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import sparkdl
from benchmarks.images import session
from benchmarks.prepare import FLOATS, numbers_and_texts, stages_for_all
from benchmarks.report import Report
from benchmarks.turns import seconds_in_turn
from sparkdl.data import Loader

__all__ = ["run"]

ROWS = 3_000_000
BATCH_SIZE = 1024
ROUNDS = 3


def run(rows: int = ROWS, rounds: int = ROUNDS) -> Report:
    """Measure both ways in turn, round by round; the first round only warms up. Runs on the driver."""
    ways = {"stay in place": True, "copied": False}
    with session() as spark, TemporaryDirectory() as folder:
        numbers_and_texts(spark, rows, Path(folder))
        prepared = seconds_in_turn({way: partial(_prepare, folder, kept) for way, kept in ways.items()}, rounds)
        read = seconds_in_turn({way: partial(_read, folder, kept) for way, kept in ways.items()}, rounds)
    return Report(
        title=f"in_place: {rows:,} rows of {FLOATS} floats and two categories, one rank",
        columns=["rows", "prepare, s", "fastest, slowest", "read, rows/s", "slowest, fastest"],
        rows=[
            [
                way,
                median(prepared[way]),
                f"{min(prepared[way]):.3g}, {max(prepared[way]):.3g}",
                rows / median(read[way]),
                f"{rows / max(read[way]):,.0f}, {rows / min(read[way]):,.0f}",
            ]
            for way in ways
        ],
        note=f"Medians of {rounds} rounds after a warm-up, taken in turn. Batches of {BATCH_SIZE:,} rows, shuffled.",
    )


def _settings(folder: str, in_place: bool) -> sparkdl.Prepare:
    return sparkdl.Prepare(
        output=f"{folder}/{'card' if in_place else 'copy'}",
        source=sparkdl.Source(format="parquet", path=f"{folder}/raw"),
        split=sparkdl.Split(fractions={}),
        stages=stages_for_all(),
        in_place=in_place,
    )


def _prepare(folder: str, in_place: bool) -> None:
    settings = _settings(folder, in_place)
    shutil.rmtree(settings.output, ignore_errors=True)
    sparkdl.prepare(None, settings)


def _read(folder: str, in_place: bool) -> None:
    dataset = sparkdl.Dataset.open(_settings(folder, in_place).output)
    read = sum(len(batch.labels) for batch in Loader(dataset, "train", batch_size=BATCH_SIZE).epoch(0))
    assert read == dataset.rows("train")
