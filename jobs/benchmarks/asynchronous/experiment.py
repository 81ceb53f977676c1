"""``jobs/benchmark.py asynchronous``: its parts, how much each measures, and the file they are written to."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import BaseModel, ConfigDict
from pyspark.sql import SparkSession

import sparkdl
from benchmarks.asynchronous import backups, coming_and_going, kills, race, regression, transport, words
from benchmarks.asynchronous.backups import Backups
from benchmarks.asynchronous.coming_and_going import Executors
from benchmarks.asynchronous.kills import Kills
from benchmarks.asynchronous.race import Race
from benchmarks.asynchronous.regression import Regression
from benchmarks.asynchronous.transport import Transport
from benchmarks.asynchronous.words import Words
from benchmarks.images import fashion_mnist, session
from benchmarks.report import Report

__all__ = ["PARTS", "QUICK", "WHOLE", "Plan", "Results", "run"]

OUTPUT = Path("output/asynchronous")
WORKERS = 4


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    part: float
    """Of Fashion-MNIST's training rows, for all but the regression; half of them are there to validate with."""
    epochs: int
    network: Mapping[str, Any]
    """Also the rows of a batch."""
    steps: int
    """Of Sandblaster, by which dealings are compared."""
    regression_part: float
    regression_steps: int
    kills: int
    seconds: float
    """With each number of executors."""
    words: Mapping[str, Any]
    """Changes to the settings of ``conf/glosses.yaml``."""
    transport: Mapping[str, Any]


CNN = {"model": "cnn", "model_options": {"hidden": 32}, "batch_size": 32}
WHOLE = Plan(
    part=0.4,
    epochs=12,
    network=CNN,
    steps=4,
    regression_part=1.0,
    regression_steps=600,
    kills=100,
    seconds=40.0,
    words={"epochs": 3},
    transport={"size": 80_000_000, "rounds": 15, "periods": (1, 16, 32), "exchanges": 8, "step": 0.025},
)
QUICK = Plan(
    part=0.02,
    epochs=2,
    network={"model": "mlp", "model_options": {"hidden": [16]}, "batch_size": 32},
    steps=2,
    regression_part=0.02,
    regression_steps=20,
    kills=4,
    seconds=3.0,
    words={"epochs": 2, "model_options": {"vocabulary": 262144, "width": 4, "sparse": True}},
    transport={"size": 1_000_000, "rounds": 3, "periods": (1, 2), "exchanges": 2, "step": 0.005},
)


class Results(BaseModel):
    """What was measured so far: the tables are made from it alone."""

    model_config = ConfigDict(extra="forbid")

    race: Race | None = None
    backups: Backups | None = None
    regression: Regression | None = None
    kills: Kills | None = None
    executors: Executors | None = None
    hogwild: Words | None = None
    transport: Transport | None = None


@dataclass
class Laboratory:
    """Spark with a slot for each worker and for a server, and datasets, made when they are first needed."""

    plan: Plan
    seeds: int
    tries: int
    folder: str
    stack: ExitStack = field(default_factory=ExitStack)

    @cached_property
    def spark(self) -> SparkSession:
        """Stopped when the stack is left."""
        return self.stack.enter_context(session(sparkdl.Cluster(embedded_slots=WORKERS + 1)))

    def race(self) -> Race:
        """Time to an accuracy, and accuracy in time."""
        dataset = self._images("race", {"validation": 0.5}, self.plan.part)
        settings = {**self.plan.network, "epochs": self.plan.epochs}
        return race.measure(self.spark, dataset, settings, workers=WORKERS, seeds=self.seeds, tries=self.tries)

    def backups(self) -> Backups:
        """Ways to deal rows."""
        return backups.measure(
            self.spark,
            self._images("backups", {}, self.plan.part / 4),
            self.plan.network,
            workers=WORKERS,
            steps=self.plan.steps,
            repetitions=self.seeds,
        )

    def regression(self) -> Regression:
        """A convex task."""
        dataset = self._images("regression", {}, self.plan.regression_part)
        settings = {"batch_size": 512}
        return regression.measure(self.spark, dataset, settings, workers=WORKERS, steps=self.plan.regression_steps)

    def kills(self) -> Kills:
        """Workers and servers that die."""
        return kills.measure(
            self.spark,
            self._images("kills", {}, self.plan.part / 8),
            {**self.plan.network, "epochs": 20},
            workers=WORKERS - 1,
            servers=2,
            kills=self.plan.kills,
        )

    def executors(self) -> Executors:
        """Executors that come and go, on a cluster of their own."""
        dataset = self._images("executors", {}, self.plan.part / 8)
        return coming_and_going.measure(dataset, self.plan.network, seconds=self.plan.seconds)

    def hogwild(self) -> Words:
        """Sparse texts."""
        configured = sparkdl.load_settings(str(words.CONFIGURATION)).require("train")
        dataset = words.prepared(self.spark, f"{self.folder}/words")
        return words.measure(self.spark, dataset, configured.model_copy(update=self.plan.words), seeds=self.seeds)

    def transport(self) -> Transport:
        """What carries parameters; it needs no Spark."""
        return transport.measure(**self.plan.transport)

    def _images(self, name: str, fractions: dict[str, float], part: float) -> sparkdl.Dataset:
        output = f"{self.folder}/{name}"
        return fashion_mnist(self.spark, output, fractions=fractions, num_ranks=WORKERS, part=part)


REPORTS: dict[str, Callable[[Any], list[Report]]] = {
    "transport": transport.reports,
    "hogwild": words.reports,
    "regression": regression.reports,
    "backups": backups.reports,
    "race": race.reports,
    "kills": kills.reports,
    "executors": coming_and_going.reports,
}
PARTS = tuple(REPORTS)
"""In this order: what needs no Spark comes before there is one."""


def run(plan: Plan, *, parts: Sequence[str], results: Path | None, seeds: int, tries: int) -> Iterator[Report]:
    """Print the tables of these parts, or of all. Runs on the driver.

    ``results`` is the file of an earlier run: what it has is not measured again.
    """
    OUTPUT.mkdir(parents=True, exist_ok=True)
    found = Results.model_validate_json(results.read_text()) if results else Results()
    with TemporaryDirectory() as folder, ExitStack() as stack:
        laboratory = Laboratory(plan, seeds, tries, folder, stack)
        for name in parts or PARTS:
            if getattr(found, name) is None:
                setattr(found, name, getattr(laboratory, name)())
                (OUTPUT / "results.json").write_text(found.model_dump_json(indent=1))
            yield from REPORTS[name](getattr(found, name))
