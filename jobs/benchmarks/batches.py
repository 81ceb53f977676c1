"""A large batch beside a small one: as many epochs each, and the large one also with the noise that it lacks.

The comparison of Wen et al. (2020, arXiv 1902.08234), with LeNet on some rows of Fashion-MNIST: few enough that a
network learns them by heart, where the noise of a small batch matters.
"""

import math
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from tqdm.auto import tqdm

import sparkdl
from benchmarks.images import session
from benchmarks.loop import new_replica
from benchmarks.report import Report, Target
from sparkdl.cluster import Rank, run_ranks
from sparkdl.collectives import TorchBackend
from sparkdl.data import Dataset
from sparkdl.errors import RankError, TrainingError
from sparkdl.settings import Train
from sparkdl.training.checkpoints.state import TrainingState
from sparkdl.training.loop import evaluate_split, train_epoch
from sparkdl.training.reports.reporter import Reporter

__all__ = ["METHODS", "Method", "Outcome", "Results", "Training", "report", "run"]

RAW = Path("output/raw/fashion-mnist")
BACKEND = TorchBackend()
AT_A_TIME = 2
"""Trainings, each on one rank with one thread: the same methods on more ranks would only exchange gradients."""
ROWS, VALIDATION = 1_000, 4_000
OF_ALL = 60_000  # training rows of Fashion-MNIST
EPOCHS = 60
SMALL, LARGE = 16, 128
"""Rows of a step, of all ranks together."""
DIVERGED = f"{TrainingError.__module__}.{TrainingError.__qualname__}"


@dataclass(frozen=True)
class Method:
    """One way to train in as many epochs."""

    name: str
    rows: int
    """Of a step."""
    rates: Sequence[float]
    """Learning rates to try: first the usual one, then around it."""
    noise: str | None = None
    """The kind of ``train.gradient_noise``."""

    def settings(self, rate: float, seed: int) -> Train:
        """A training of it."""
        changes: dict[str, Any] = {}
        if self.noise:
            changes["gradient_noise"] = {"kind": self.noise, "small_batch": SMALL}
        return Train.model_validate(
            {
                "model": "lenet",
                "epochs": EPOCHS,
                "batch_size": self.rows,
                "optimizer": "sgd",
                "optimizer_options": {"momentum": 0.9},
                "learning_rate": rate,
                "warmup_epochs": 3,
                "seed": seed,
            }
            | changes
        )


OF_LARGE = (0.05, 0.02, 0.1, 0.01, 0.2)
METHODS = (
    Method("small batch", SMALL, (0.01, 0.02, 0.005, 0.04, 0.0025)),
    Method("large batch", LARGE, OF_LARGE),
    Method("large batch + Fisher trace", LARGE, OF_LARGE, "fisher_trace"),
    Method("large batch + Fisher diagonal", LARGE, OF_LARGE, "fisher_diagonal"),
)
"""The paper's, in the order that it finds for the last three, from the worst to the best."""


class Outcome(NamedTuple):
    """What a training ended with."""

    train_loss: float
    """Of the last epoch."""
    validation: float
    """Accuracy."""
    test: float | None = None
    """Accuracy, where it was asked for."""


@dataclass(frozen=True)
class Results:
    """What was found of a method."""

    method: Method
    rate: float
    """The best one by validation rows."""
    outcomes: list[Outcome]
    """One for each seed."""


@dataclass(frozen=True)
class Training:
    """A training and what is to be told of it. Called on each rank."""

    dataset: Dataset
    settings: Train
    test: bool = False
    """Whether to look at the test rows, once, at the end."""

    def __call__(self, rank: Rank) -> Outcome:
        """Train by the loop that :func:`sparkdl.train` has, with one thread."""
        torch.set_num_threads(1)
        with BACKEND.connect() as world:
            replica = new_replica(rank, self.dataset, self.settings, world)
            reporter, state = Reporter(rank, replica.task), TrainingState()
            for _ in range(self.settings.epochs):
                state.finish_epoch(train_epoch(replica, self.dataset, state, reporter))
                replica.strategy.end_epoch()
            splits = ["validation", "test"] if self.test else ["validation"]
            found = [
                evaluate_split(replica, replica.model, self.dataset, split, reporter).figures["accuracy"]
                for split in splits
            ]
        return Outcome(state.history[-1]["train_loss"], *found)


def run(*, seeds: int = 3, tries: int = 3) -> Report:
    """Tune each method's rate on validation rows, then train with each seed and test once. Runs on the driver."""
    with session() as spark, tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(AT_A_TIME) as pool:
        dataset = _some_rows(folder)
        bar = tqdm(total=len(METHODS) * (tries + seeds), unit="run", disable=None)

        def train(training: Training) -> Outcome | None:
            try:
                return run_ranks(training, 1, spark=spark, backend=BACKEND)[0]
            except RankError as error:
                if error.exception_type != DIVERGED:
                    raise
                return None
            finally:
                bar.update()

        rates = [(method, rate) for method in METHODS for rate in method.rates[:tries]]
        tried = pool.map(train, [Training(dataset, method.settings(rate, seed=0)) for method, rate in rates])
        accuracies = {one: found.validation if found else 0.0 for one, found in zip(rates, tried, strict=True)}
        best = {method: max(method.rates[:tries], key=lambda rate: accuracies[method, rate]) for method in METHODS}
        runs = [(method, seed) for method in METHODS for seed in range(1, 1 + seeds)]
        ended = pool.map(train, [Training(dataset, each.settings(best[each], seed), test=True) for each, seed in runs])
        found = {method: Results(method, best[method], []) for method in METHODS}
        for (method, _), outcome in zip(runs, ended, strict=True):
            found[method].outcomes.append(outcome or Outcome(math.nan, 0.0, 0.0))
        bar.close()
    return report(list(found.values()), tries=tries)


def report(found: Sequence[Results], *, tries: int) -> Report:
    """The table, and whether the paper's order is there."""
    tests = {each.method.name: [outcome.test or 0.0 for outcome in each.outcomes] for each in found}
    _, *large = (each.method.name for each in found)
    return Report(
        title=f"batches: LeNet, {ROWS:,} images of Fashion-MNIST, {EPOCHS} epochs",
        columns=["method", "rows a step", "rate", "test accuracy", "validation accuracy", "training loss"],
        rows=[
            [
                each.method.name,
                str(each.method.rows),
                f"{each.rate:g}",
                _spread(tests[each.method.name], "{:.1%}"),
                _spread([outcome.validation for outcome in each.outcomes], "{:.1%}"),
                _spread([outcome.train_loss for outcome in each.outcomes], "{:.3f}"),
            ]
            for each in found
        ],
        targets=[
            Target(f"test accuracy of {better} over that of {worse}, points", 100 * _gain(tests, better, worse), 0.0)
            for worse, better in pairwise(large)
        ],
        note=f"Medians of {len(found[0].outcomes)} seeds, with the least and the most. Rates: the best of {tries} for"
        f" each method by {VALIDATION:,} validation rows; test rows are looked at once. Noise is that of {SMALL}"
        " rows.",
    )


def _gain(tests: Mapping[str, Sequence[float]], better: str, worse: str) -> float:
    return median(tests[better]) - median(tests[worse])


def _spread(values: Sequence[float], form: str) -> str:
    low, middle, high = (form.format(value) for value in (min(values), median(values), max(values)))
    return f"{middle} ({low} to {high})"


def _some_rows(folder: str) -> Dataset:
    """So many training and validation rows of Fashion-MNIST, and all of its test rows."""
    sparkdl.fetch("fashion-mnist", RAW)
    with session() as spark:
        images = sparkdl.open_source(sparkdl.Source(format="idx", path=str(RAW)), spark)
        share = (ROWS + VALIDATION) / OF_ALL
        some = images.where("split = 'train'").sample(share, seed=0).union(images.where("split = 'test'"))
        split = sparkdl.Split(column="split", fractions={"validation": VALIDATION / (ROWS + VALIDATION)})
        settings = sparkdl.Prepare(output=f"{folder}/dataset", image="image", image_shape=[28, 28], split=split)
        return sparkdl.prepare(some, settings, spark=spark)
