"""Hogwild! with two workers beside one, on sparse texts: WordNet's glosses, as conf/glosses.yaml has them."""

from collections.abc import Sequence
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
    """Trainings with one worker and with two, in turn."""

    rows: int
    rates: dict[int, list[float]]
    """Rows per second by the number of workers: of each epoch but the first of each training."""
    accuracies: dict[int, list[float]]
    """On the validation rows at the end of each training."""


def prepared(spark: SparkSession, output: str) -> sparkdl.Dataset:
    """The glosses. Runs on the driver."""
    sparkdl.fetch("wordnet", RAW)
    settings = sparkdl.load_settings(str(CONFIGURATION), [f"prepare.output={output}", f"prepare.source.path={RAW}"])
    return sparkdl.prepare(None, settings.require("prepare"), spark=spark)


def measure(spark: SparkSession, dataset: sparkdl.Dataset, settings: sparkdl.Train, *, seeds: int) -> Words:
    """Train with each seed by one worker, then by two. Runs on the driver."""
    rates: dict[int, list[float]] = {1: [], 2: []}
    accuracies: dict[int, list[float]] = {1: [], 2: []}
    for seed in range(1, 1 + seeds):
        for workers in rates:
            chosen = settings.model_dump(exclude_unset=True) | {"seed": seed}
            history = fit(spark, dataset, chosen, workers=workers).history
            rates[workers] += [epoch["rows_per_second"] for epoch in history[1:]]
            accuracies[workers].append(history[-1]["validation_accuracy"])
    return Words(rows=dataset.rows("train"), rates=rates, accuracies=accuracies)


def reports(words: Words) -> list[Report]:
    """One table."""
    speed = {workers: median(rates) for workers, rates in words.rates.items()}
    accuracy = {workers: fmean(found) for workers, found in words.accuracies.items()}
    return [
        Report(
            title=f"asynchronous: Hogwild! on {words.rows:,} glosses",
            columns=["workers", "rows/s", "right answers on validation rows"],
            rows=[
                [str(workers), _spread(words.rates[workers], speed[workers], "{:,.0f}"), _spread(each, mean, "{:.2%}")]
                for (workers, each), mean in zip(words.accuracies.items(), accuracy.values(), strict=True)
            ],
            targets=[
                Target("rows/s, two workers over one", speed[2] / speed[1], 1.6),
                Target("accuracy, points apart", 100 * abs(accuracy[2] - accuracy[1]), 0.3, at_most=True),
            ],
            note=f"{len(words.accuracies[1])} trainings with each, in turn, with the least and the most:"
            " medians of epochs' rows/s, without each training's first, and means of accuracies.",
        )
    ]


def _spread(values: Sequence[float], middle: float, form: str) -> str:
    return f"{form.format(middle)} ({form.format(min(values))} to {form.format(max(values))})"
