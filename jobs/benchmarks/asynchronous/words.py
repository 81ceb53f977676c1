"""Hogwild! with two workers beside one, on sparse texts: WordNet's glosses, as conf/glosses.yaml has them.

What two workers can reach on this machine, two trainings show that run at the same time and share nothing.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean, median

from pydantic import BaseModel
from pyspark.sql import SparkSession

import sparkdl
from benchmarks.asynchronous.training import fit
from benchmarks.report import Report, Target

__all__ = ["Words", "measure", "prepared", "reports"]

CONFIGURATION = Path(__file__).parents[3] / "conf" / "glosses.yaml"
RAW = "output/raw/wordnet"


class Words(BaseModel):
    """Trainings with one worker, with two, and two apart, in turn."""

    rows: int
    rates: dict[int, list[float]]
    """Rows per second by the number of workers: of each epoch but the first of each training."""
    apart: list[float]
    """The same of two trainings by one worker each, at the same time: their sums."""
    accuracies: dict[int, list[float]]
    """On the validation rows at the end of each training."""


def prepared(spark: SparkSession, output: str) -> sparkdl.Dataset:
    """The glosses. Runs on the driver."""
    sparkdl.fetch("wordnet", RAW)
    settings = sparkdl.load_settings(str(CONFIGURATION), [f"prepare.output={output}", f"prepare.source.path={RAW}"])
    return sparkdl.prepare(None, settings.require("prepare"), spark=spark)


def measure(spark: SparkSession, dataset: sparkdl.Dataset, settings: sparkdl.Train, *, seeds: int) -> Words:
    """Train with each seed by one worker, by two, and by two apart. Runs on the driver."""
    rates: dict[int, list[float]] = {1: [], 2: []}
    apart: list[float] = []
    accuracies: dict[int, list[float]] = {1: [], 2: []}
    with ThreadPoolExecutor(2) as pool:
        for seed in range(1, 1 + seeds):
            chosen = settings.model_dump(exclude_unset=True) | {"seed": seed}
            for workers in rates:
                history = fit(spark, dataset, chosen, workers=workers).history
                rates[workers] += _rates(history)
                accuracies[workers].append(history[-1]["validation_accuracy"])
            both = [pool.submit(fit, spark, dataset, chosen, workers=1) for _ in range(2)]
            apart += map(sum, zip(*(_rates(each.result().history) for each in both), strict=True))
    return Words(rows=dataset.rows("train"), rates=rates, apart=apart, accuracies=accuracies)


def reports(words: Words) -> list[Report]:
    """One table."""
    speed = {workers: median(rates) for workers, rates in words.rates.items()}
    apart = median(words.apart)
    accuracy = {workers: fmean(found) for workers, found in words.accuracies.items()}
    return [
        Report(
            title=f"asynchronous: Hogwild! on {words.rows:,} glosses",
            columns=["workers", "rows/s", "right answers on validation rows"],
            rows=[
                [str(workers), _spread(words.rates[workers], speed[workers], "{:,.0f}"), _spread(each, mean, "{:.2%}")]
                for (workers, each), mean in zip(words.accuracies.items(), accuracy.values(), strict=True)
            ]
            + [["two trainings apart", _spread(words.apart, apart, "{:,.0f}"), ""]],
            targets=[
                Target("rows/s, two workers over one", speed[2] / speed[1], 1.6),
                Target("accuracy, points apart", 100 * abs(accuracy[2] - accuracy[1]), 0.3, at_most=True),
            ],
            note=f"{len(words.accuracies[1])} trainings with each, in turn, with the least and the most:"
            " medians of epochs' rows/s, without each training's first, and means of accuracies. Two trainings"
            f" at the same time that share nothing do {apart / speed[1]:.2f} times as much as one: the cores"
            " allow for no more.",
        )
    ]


def _rates(history: Sequence[dict[str, float]]) -> list[float]:
    return [epoch["rows_per_second"] for epoch in history[1:]]


def _spread(values: Sequence[float], middle: float, form: str) -> str:
    return f"{form.format(middle)} ({form.format(min(values))} to {form.format(max(values))})"
