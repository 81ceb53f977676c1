"""Time to an accuracy, and accuracy at the end: all-reduce, Downpour and Sandblaster on the same four workers."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from statistics import median
from typing import Any

from pydantic import BaseModel
from pyspark.sql import SparkSession

import sparkdl
from benchmarks.asynchronous.training import PACE, SLOWNESS, fit
from benchmarks.report import Report, Target
from sparkdl.errors import TrainingError

__all__ = ["METHODS", "Race", "Run", "measure", "reports"]

ALL_REDUCE, ADAGRAD, FIXED, SANDBLASTER = (
    "all-reduce, AdamW",
    "Downpour, Adagrad",
    "Downpour, fixed rate",
    "Sandblaster L-BFGS",
)
WARM_UP = {"warmup_epochs": 1}
METHODS: dict[str, dict[str, Any]] = {
    ALL_REDUCE: {"strategy": "allreduce", "optimizer": "adamw", **WARM_UP},
    ADAGRAD: {"strategy": {"kind": "downpour", "rule": "adagrad", "warm_start": 16}, **WARM_UP},
    FIXED: {"strategy": {"kind": "downpour", "rule": "sgd", "warm_start": 16}, "schedule": "constant", **WARM_UP},
    SANDBLASTER: {"strategy": "sandblaster"},
}
"""All-reduce and Adagrad have the schedule that is the default, a cosine. Adagrad's first step moves each parameter by
the whole rate, however small its gradient: without warm-up the network does not recover from it."""
RATES = {ALL_REDUCE: (0.005, 0.003, 0.002), ADAGRAD: (0.03, 0.04, 0.02), FIXED: (0.1, 0.05, 0.15)}
"""That each method tries, a likely one first."""
NEAR = 0.025
"""The target lies so far below where all-reduce ends."""
MISSING = "-"


class Run(BaseModel):
    """One training: what is known after each of its epochs."""

    method: str
    slowed: bool
    """Whether one of the workers was slow."""
    seconds: list[float]
    """Since the beginning of the first epoch, looks at the validation rows included."""
    accuracies: list[float]
    """On the validation rows."""
    test: float
    """Accuracy on the test rows at the end, of the best epoch."""

    def seconds_to(self, accuracy: float) -> float | None:
        """Until the first epoch that is so good."""
        pairs = zip(self.seconds, self.accuracies, strict=True)
        return next((seconds for seconds, found in pairs if found >= accuracy), None)

    def best_at(self, seconds: float) -> float:
        """The best accuracy of the epochs that have ended by then."""
        pairs = zip(self.seconds, self.accuracies, strict=True)
        return max((found for ended, found in pairs if ended <= seconds), default=0.0)


class Race(BaseModel):
    """All trainings."""

    workers: int
    rows: int
    rates: dict[str, float]
    target: float
    runs: list[Run]

    def of(self, method: str, *, slowed: bool) -> list[Run]:
        """The trainings by one method, one for each seed."""
        return [run for run in self.runs if (run.method, run.slowed) == (method, slowed)]


def measure(
    spark: SparkSession, dataset: sparkdl.Dataset, settings: Mapping[str, Any], *, workers: int, seeds: int, tries: int
) -> Race:
    """Tune each method's rate on the validation rows, then train with each seed. Runs on the driver."""

    def train(method: str, rate: float | None, *, seed: int, slowed: bool = False, **more: Any) -> Run:
        chosen = {**settings, **METHODS[method], "seed": seed, **({"learning_rate": rate} if rate else {}), **more}
        found = fit(spark, dataset, chosen, workers=workers, pace=PACE, slowness=SLOWNESS if slowed else 1.0)
        ends = [sum(each["seconds"] for each in found.history[: end + 1]) for end in range(len(found.history))]
        accuracies = [each["validation_accuracy"] for each in found.history]
        test = found.evaluations["test"].figures["accuracy"]
        return Run(method=method, slowed=slowed, seconds=ends, accuracies=accuracies, test=test)

    rates: dict[str, float] = {}
    for method, possible in RATES.items():
        ends = {}
        for rate in possible[:tries]:
            with suppress(TrainingError):  # its loss is no longer a number: it has lost
                ends[rate] = train(method, rate, seed=0).accuracies[-1]
        rates[method] = max(ends, key=lambda rate: ends[rate])
    runs = [train(method, rates.get(method), seed=seed) for seed in range(1, 1 + seeds) for method in METHODS]
    race = Race(workers=workers, rows=dataset.rows("train"), rates=rates, target=0.0, runs=runs)
    race.target = _median(run.accuracies[-1] for run in race.of(ALL_REDUCE, slowed=False)) - NEAR
    target = {"metric": "validation_accuracy", "value": race.target}
    for seed in range(1, 1 + seeds):
        for method in (ALL_REDUCE, ADAGRAD):
            race.runs.append(train(method, rates[method], seed=seed, slowed=True, target=target))
    return race


def reports(race: Race) -> list[Report]:
    """A table of times to the target, and one of accuracies at the same seconds."""
    return [_times(race), _same_seconds(race)]


def _times(race: Race) -> Report:
    groups = [(method, slowed) for method in METHODS for slowed in (False, True) if race.of(method, slowed=slowed)]
    end = {method: _median(run.accuracies[-1] for run in race.of(method, slowed=False)) for method in METHODS}
    slow = {method: _seconds(race.of(method, slowed=True), race.target) for method in (ALL_REDUCE, ADAGRAD)}
    theirs, mine = slow[ALL_REDUCE], slow[ADAGRAD]
    targets = [Target("below all-reduce at the end, points", 100 * (end[ALL_REDUCE] - end[ADAGRAD]), 0.5, at_most=True)]
    if theirs and mine:
        targets.insert(0, Target("one worker slowed: s to the target, all-reduce over Downpour", theirs / mine, 2))
    return Report(
        title=f"asynchronous: {race.workers} workers on {race.rows:,} rows of Fashion-MNIST, one five times slower",
        columns=["method", "rate", "one slow", f"s to {race.target:.1%}", "s an epoch", "at the end", "on test rows"],
        rows=[_row(race, method, slowed) for method, slowed in groups],
        targets=targets,
        note=f"Medians of {len(race.of(ALL_REDUCE, slowed=False))} seeds, with the least and the most. The target is"
        f" {100 * NEAR:g} points below where all-reduce ends on validation rows; runs with a slow worker end there."
        f" Workers sleep after each batch: all take {PACE:g} times the time that they keep a core busy, the slow one"
        f" {PACE * SLOWNESS:g} times.",
    )


def _row(race: Race, method: str, slowed: bool) -> list[str | float]:
    runs = race.of(method, slowed=slowed)
    times = [run.seconds_to(race.target) for run in runs]
    return [
        method,
        f"{race.rates[method]:g}" if method in race.rates else MISSING,
        "yes" if slowed else "no",
        _spread([each for each in times if each], len(runs), "{:.3g}"),
        _median(run.seconds[-1] / len(run.seconds) for run in runs),
        MISSING if slowed else _spread([run.accuracies[-1] for run in runs], len(runs), "{:.1%}"),
        MISSING if slowed else _spread([run.test for run in runs], len(runs), "{:.1%}"),
    ]


def _same_seconds(race: Race) -> Report:
    """At a quarter, a half and the whole of what Downpour with Adagrad takes."""
    whole = _median(run.seconds[-1] for run in race.of(ADAGRAD, slowed=False))
    looks = [whole / 4, whole / 2, whole]
    found = {
        method: [_median(run.best_at(seconds) for run in race.of(method, slowed=False)) for seconds in looks]
        for method in METHODS
    }
    return Report(
        title="asynchronous: the best accuracy on validation rows after the same seconds, no worker slowed",
        columns=["method", *(f"{seconds:.3g} s" for seconds in looks)],
        rows=[[method, *(f"{each:.1%}" for each in accuracies)] for method, accuracies in found.items()],
        targets=[
            Target(f"Adagrad ahead of {other} at the end, points", 100 * (found[ADAGRAD][-1] - found[other][-1]), 0)
            for other in (FIXED, SANDBLASTER)
        ],
        note="Medians over seeds.",
    )


def _seconds(runs: Sequence[Run], target: float) -> float | None:
    """The median of the seconds to the target, if all runs have got there."""
    times = [run.seconds_to(target) for run in runs]
    reached = [each for each in times if each]
    return median(reached) if reached and len(reached) == len(times) else None


def _median(values: Any) -> float:
    return float(median(values))


def _spread(values: Sequence[float], count: int, form: str) -> str:
    """The median, the least and the most; of fewer than there are runs, how many."""
    if not values:
        return MISSING
    middle, least, most = (form.format(each) for each in (median(values), min(values), max(values)))
    return f"{middle} ({least} to {most})" + (f", {len(values)} of {count}" if len(values) < count else "")
