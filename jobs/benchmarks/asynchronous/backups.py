"""Sandblaster with one slow worker: how rows are dealt, and whether the last portions are done twice."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from statistics import median
from typing import Any

from pydantic import BaseModel
from pyspark.sql import SparkSession

import sparkdl
from benchmarks.asynchronous.training import PACE, SLOWNESS, fit
from benchmarks.report import Report, Target
from sparkdl.training.asynchronous import portions

__all__ = ["Backups", "Dealing", "measure", "reports"]

DEALINGS = {"as many portions as workers": (None, 1), "small portions": (32, 1), "small portions, backups": (32, 2)}
"""How many portions, and how many workers may do one of them at the same time."""
SHARES, SMALL, TWICE = DEALINGS


class Dealing(BaseModel):
    """One way to deal rows to workers of which one is slow."""

    name: str
    portions: int
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

    def over(self, slower: str, faster: str) -> float:
        """How many times as long one dealing takes as the other: the median of the repetitions' ratios."""
        found = {each.name: each.seconds for each in self.dealings}
        return median(a / b for a, b in zip(found[slower], found[faster], strict=True))


def measure(
    spark: SparkSession,
    dataset: sparkdl.Dataset,
    settings: Mapping[str, Any],
    *,
    workers: int,
    steps: int,
    repetitions: int,
    slowness: float = SLOWNESS,
) -> Backups:
    """Take the same steps with each way of dealing, in turn. The first step, with all that starts, is not timed."""
    found = {
        name: Dealing(name=name, portions=count or workers, seconds=[], losses=[])
        for name, (count, _) in DEALINGS.items()
    }
    for _ in range(repetitions):
        for name, dealing in found.items():
            strategy = {"kind": "sandblaster", "portions": dealing.portions}
            chosen = {**settings, "strategy": strategy, "epochs": 1 + steps, "best_by": "loss"}
            with _copies(DEALINGS[name][1]):
                history = fit(spark, dataset, chosen, workers=workers, pace=PACE, slowness=slowness).history
            dealing.seconds.append(sum(epoch["seconds"] for epoch in history[1:]))
            dealing.losses.append([epoch["train_loss"] for epoch in history])
    return Backups(workers=workers, rows=dataset.rows("train"), steps=steps, dealings=list(found.values()))


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
    small = [each.losses for each in backups.dealings if each.portions != backups.workers]
    different = len({tuple(losses) for repetitions in small for losses in repetitions}) - 1
    return [
        Report(
            title=f"asynchronous: {backups.steps} steps of Sandblaster on {backups.rows:,} rows of Fashion-MNIST,"
            f" one of {backups.workers} workers five times slower",
            columns=["dealt", "portions", "s", "equal shares take, times"],
            rows=[
                [
                    each.name,
                    str(each.portions),
                    f"{median(each.seconds):.3g} ({min(each.seconds):.3g} to {max(each.seconds):.3g})",
                    backups.over(SHARES, each.name),
                ]
                for each in backups.dealings
            ],
            targets=[
                Target("without backups over with them", backups.over(SMALL, TWICE), 1.5),
                Target("losses of small portions that differ from another run's", different, 0, at_most=True),
            ],
            note=f"Medians of {len(backups.dealings[0].seconds)} runs, with the least and the most; all dealings take"
            " turns. Losses are compared to the last bit.",
        )
    ]
