"""Which networks four ranks train under a limit of memory that the system enforces, whole and in parts.

The limit is one of each process, Python and its libraries included (``RLIMIT_DATA``).
"""

import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from pyspark.ml.linalg import Vectors
from pyspark.sql import SparkSession

import sparkdl
from benchmarks.images import images, session
from benchmarks.report import Report, Target
from sparkdl.cluster import Rank, returned_memory, run_local
from sparkdl.collectives import TorchBackend
from sparkdl.data import Dataset
from sparkdl.errors import RankError
from sparkdl.models import NETWORK_FILE
from sparkdl.settings import Train
from sparkdl.training.loop import Job, train_rank
from sparkdl.training.model_folder import check_model, write_model_folder

__all__ = ["CASES", "Case", "Found", "report", "run", "train"]

SIZE = 4
MB = 1_000_000
STRATEGIES: dict[str, dict[str, Any]] = {
    "allreduce": {"kind": "allreduce"},
    "ist": {"kind": "ist"},
    "ist, sharded": {"kind": "ist", "sharded": True},
}
INPUTS, CLASSES, KEPT, WORDS = 40_000, 20_000, 20, 30
"""Of the made-up extreme classification: each class has 30 words of its own, of which a row has 20."""


@dataclass(frozen=True)
class Case:
    """A network and a limit."""

    name: str
    hidden: tuple[int, ...]
    limit: int
    """Bytes."""
    epochs: int
    rate: float
    sparse: bool
    strategies: tuple[str, ...] = tuple(STRATEGIES)

    def settings(self, strategy: str) -> Train:
        """How it is trained: Adam keeps twice as much as the weights take."""
        options = {"model_options": {"hidden": self.hidden}, "optimizer": "adam", "keep_last": 1}
        return Train(
            **options,  # type: ignore[arg-type]
            strategy=STRATEGIES[strategy],  # type: ignore[arg-type]
            epochs=self.epochs,
            learning_rate=self.rate,
            schedule="constant",
            checkpoint_minutes=None,
        )


CASES = (
    Case("40,000-1,024-20,000", (1_024,), limit=1_050 * MB, epochs=3, rate=0.003, sparse=True),
    Case("784-22,000-22,000-10", (22_000, 22_000), limit=2_006 * MB, epochs=2, rate=1e-4, sparse=False),
)


class Found(NamedTuple):
    """What became of a training."""

    outcome: str
    peak: str | float
    """MB that the largest rank had in memory."""
    seconds: str | float
    """Of an epoch, the last one."""


def run() -> Report:
    """Train each network with each strategy. Runs on the driver."""
    found = []
    for case in CASES:
        with _dataset(case) as dataset:
            weights = sum(parameter.nbytes for parameter in _hollow(dataset, case))
            found += [(case, weights, strategy, train(dataset, case, strategy)) for strategy in case.strategies]
    return report(found)


def report(found: Sequence[tuple[Case, int, str, Found]]) -> Report:
    """The table of what became of each network, of so many bytes, with each strategy."""
    return Report(
        title=f"memory: {SIZE} ranks, and what each may have",
        columns=[
            *("network", "strategy", "weights, MB", "limit of a rank, MB", "weights and Adam over the limit"),
            *("outcome", "peak of a rank, MB", "epoch, s"),
        ],
        rows=[
            [case.name, strategy, weights / MB, case.limit / MB, 3 * weights / case.limit, *ended]
            for case, weights, strategy, ended in found
        ],
        targets=[
            Target(
                f"{case.name}, {strategy}: trained",
                float(ended.outcome.startswith("trained")),
                limit=float(strategy == "ist, sharded"),
                at_most=strategy != "ist, sharded",
            )
            for case, _, strategy, ended in found
        ],
        note="Whatever is trained is evaluated, saved and registered under the same limit.",
    )


def _hollow(dataset: Dataset, case: Case) -> Iterator[Any]:
    return check_model(dataset, case.settings("ist, sharded"), ranks=SIZE).parameters()


def train(dataset: Dataset, case: Case, strategy: str) -> Found:
    """Train, evaluate, save and register under the limit, in processes of their own. Runs on the driver.

    Raises :class:`RankError` for any failure but that of memory.
    """
    settings = case.settings(strategy)
    with TemporaryDirectory() as folder:
        job = Job(dataset, settings, f"{folder}/run", TorchBackend(), reference=SIZE)
        try:
            ranks = run_local(partial(_limited_rank, job, case.limit), SIZE, backend=TorchBackend())
        except RankError as error:
            if "allocate memory" not in str(error):
                raise
            return Found("out of memory", "", "")
        history, checkpoint = ranks[0]["history"], ranks[0]["checkpoint"]
        register = partial(_limited_registration, dataset, settings, folder, checkpoint, case.limit)
        (size,) = run_local(register, 1, backend=TorchBackend())
        first, last = history[0]["train_loss"], history[-1]
        told = f"trained: loss {first:.2f} to {last['train_loss']:.2f}"
        if case.sparse:
            told += f", validation accuracy {last['validation_accuracy']:.3f}"
        return Found(
            f"{told}; {size / MB:,.0f} MB registered", max(each["peak"] for each in ranks) / MB, last["seconds"]
        )


def _limited_rank(job: Job, limit: int, rank: Rank) -> dict[str, Any]:
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    outcome = train_rank(job, rank)
    found: dict[str, Any] = {"peak": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}
    return found | ({"history": outcome.history, "checkpoint": outcome.checkpoint} if outcome else {})


def _limited_registration(
    dataset: Dataset, settings: Train, folder: str, checkpoint: str, limit: int, rank: Rank
) -> int:
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    with returned_memory():  # as on a driver
        write_model_folder(folder, dataset, settings, checkpoint)
    return (Path(folder) / NETWORK_FILE).stat().st_size


@contextmanager
def _dataset(case: Case) -> Iterator[Dataset]:
    """Rows of the network's inputs, gone afterwards. Each class of the extreme one has two to train on."""
    with session() as spark, TemporaryDirectory() as folder:
        if case.sparse:
            yield _extreme(spark, folder)
        else:
            settings = sparkdl.Prepare(output=f"{folder}/dataset", image="image", image_shape=[28, 28])
            yield sparkdl.prepare(images(spark, 640), settings)


def _extreme(spark: SparkSession, folder: str) -> Dataset:
    random = np.random.default_rng(0)
    words = [random.choice(INPUTS, WORDS, replace=False) for _ in range(CLASSES)]
    rows = [
        (label, Vectors.sparse(INPUTS, sorted(random.choice(words[label], KEPT, replace=False)), [1.0] * KEPT), part)
        for part, classes, count in (("train", CLASSES, 2), ("validation", CLASSES // 10, 1))
        for label in range(classes)
        for _ in range(count)
    ]
    settings = sparkdl.Prepare(
        output=f"{folder}/dataset",
        features=["features"],
        sparse=True,
        task="classification",
        split=sparkdl.Split(column="part", fractions={}),
    )
    return sparkdl.prepare(spark.createDataFrame(rows, ["label", "features", "part"]), settings)
