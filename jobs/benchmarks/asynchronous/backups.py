"""Sandblaster with one slow worker: how rows are dealt, and whether the last portions are done twice."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any

from pydantic import BaseModel
from pyspark.sql import SparkSession

import sparkdl
from benchmarks.asynchronous.training import PACE, SLOWNESS, fit
from benchmarks.report import Report, Target
from sparkdl.training.asynchronous import portions

__all__ = ["ALONE", "TWICE", "Backups", "Dealing", "measure", "reports"]

PORTIONS = 4, 8, 20, 32
"""Into how many portions rows are cut: as many as workers, and more, up to the default.

With three workers beside one that is exactly five times slower, multiples of 16 leave nothing to wait for at the end.
"""
ALONE, TWICE = 1, 2
"""How many workers may do one portion at the same time."""


class Dealing(BaseModel):
    """One way to deal rows to workers of which one is slow."""

    portions: int
    copies: int
    """How many workers may do one portion at the same time."""
    seconds: list[float]
    """Of the same steps of L-BFGS, in each repetition."""
    losses: list[list[float]]
    """After each step, in each repetition."""


class Backups(BaseModel):
    """All of them."""

    workers: int
    rows: int
    steps: int
    """That are timed."""
    dealings: list[Dealing]

    def of(self, portions: int, copies: int) -> Dealing:
        """One way to deal them."""
        return next(each for each in self.dealings if (each.portions, each.copies) == (portions, copies))

    def won(self, portions: int) -> float:
        """How many times as long these portions take without backups: the median of the repetitions' ratios."""
        alone, twice = (self.of(portions, copies).seconds for copies in (ALONE, TWICE))
        return median(a / b for a, b in zip(alone, twice, strict=True))


def measure(
    spark: SparkSession,
    dataset: sparkdl.Dataset,
    settings: Mapping[str, Any],
    *,
    workers: int,
    steps: int,
    repetitions: int,
    counts: Sequence[int] = PORTIONS,
    slowness: float = SLOWNESS,
) -> Backups:
    """Take the same steps with each way of dealing, in turn. The first step, with all that starts, is not timed."""
    dealings = [
        Dealing(portions=count, copies=copies, seconds=[], losses=[]) for count in counts for copies in (ALONE, TWICE)
    ]
    for _ in range(repetitions):
        for dealing in dealings:
            strategy = {"kind": "sandblaster", "portions": dealing.portions}
            chosen = {**settings, "strategy": strategy, "epochs": 1 + steps, "best_by": "loss"}
            with _copies(dealing.copies):
                history = fit(spark, dataset, chosen, workers=workers, pace=PACE, slowness=slowness).history
            dealing.seconds.append(sum(epoch["seconds"] for epoch in history[1:]))
            dealing.losses.append([epoch["train_loss"] for epoch in history])
    return Backups(workers=workers, rows=dataset.rows("train"), steps=steps, dealings=dealings)


@contextmanager
def _copies(count: int) -> Iterator[None]:
    """Let so many workers do one portion at the same time."""
    before, portions.COPIES = portions.COPIES, count
    try:
        yield
    finally:
        portions.COPIES = before


def reports(backups: Backups) -> list[Report]:
    """One table."""
    counts = sorted({each.portions for each in backups.dealings})
    different = sum(
        len({tuple(losses) for copies in (ALONE, TWICE) for losses in backups.of(count, copies).losses}) - 1
        for count in counts
    )
    shares = median(backups.of(counts[0], ALONE).seconds)
    return [
        Report(
            title=f"asynchronous: {backups.steps} steps of Sandblaster on {backups.rows:,} rows of Fashion-MNIST,"
            f" one of {backups.workers} workers five times slower",
            columns=[
                "portions",
                "s without backups",
                "s with",
                "times faster with",
                f"{counts[0]} without take, times",
            ],
            rows=[
                [
                    str(count),
                    _spread(backups.of(count, ALONE).seconds),
                    _spread(backups.of(count, TWICE).seconds),
                    backups.won(count),
                    shares / median(backups.of(count, TWICE).seconds),
                ]
                for count in counts
            ],
            targets=[
                *(
                    Target(f"{count} portions: without backups over with them", backups.won(count), 1.5)
                    for count in counts
                ),
                Target("losses that differ between dealings of the same portions", different, 0, at_most=True),
            ],
            note=f"Medians of {len(backups.dealings[0].seconds)} runs, with the least and the most; all dealings take"
            " turns. Losses are compared to the last bit.",
        )
    ]


def _spread(seconds: Sequence[float]) -> str:
    return f"{median(seconds):.3g} ({min(seconds):.3g} to {max(seconds):.3g})"
