"""What the parts of this benchmark share: a search for the ``cnn`` of Fashion-MNIST, and how it is timed."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

import sparkdl
from benchmarks.images import fashion_mnist

__all__ = ["SLOTS", "Place", "Searched", "place", "search", "spread", "warm_up"]

SLOTS = 4
CLUSTER = sparkdl.Cluster(num_ranks=1, embedded_slots=SLOTS)


class Place(NamedTuple):
    """Where searches run."""

    spark: SparkSession
    dataset: sparkdl.Dataset
    folder: Path


class Searched(NamedTuple):
    """A search that is over."""

    tuned: sparkdl.TunedModel
    seconds: float

    @property
    def best(self) -> float:
        """The best figure."""
        outcome = self.tuned.best[0].outcome(self.tuned.figures)
        return outcome[0] if outcome else float("nan")


@contextmanager
def place(part: float = 1.0) -> Iterator[Place]:
    """A Spark with four slots, and about such a part of Fashion-MNIST, a tenth of it to validate with."""
    with TemporaryDirectory() as folder:
        spark = sparkdl.get_session(CLUSTER)
        try:
            dataset = fashion_mnist(
                spark, f"{folder}/dataset", fractions={"validation": 0.1}, num_ranks=SLOTS, part=part
            )
            yield Place(spark, dataset, Path(folder))
        finally:
            spark.stop()


def spread(figures: Iterable[float]) -> tuple[float, float, float]:
    """Their median, the least and the most."""
    known = list(figures)
    return median(known), min(known), max(known)


def warm_up(where: Place) -> None:
    """Search a little on all slots, which starts Python workers."""
    tune = {"space": {"train.learning_rate": {"log": [1e-4, 1e-1]}}, "sampler": "random", "trials": SLOTS}
    search(where, train={"model": "mlp", "model_options": {"hidden": [8]}, "epochs": 1}, tune=tune)


def search(where: Place, *, train: dict[str, Any], tune: dict[str, Any]) -> Searched:
    """Search without a last run, and take the time from its beginning to its end."""
    tracking = sparkdl.Tracking(uri=f"sqlite:///{where.folder}/mlflow.db", spool=f"{where.folder}/spool")
    settings = sparkdl.Settings(
        train=sparkdl.Train(run_dir=f"{where.folder}/runs", checkpoint_minutes=None, **train),
        tune=sparkdl.Tune(refit="none", **tune),
        cluster=CLUSTER,
        tracking=tracking,
    )
    started = time.perf_counter()
    tuned = sparkdl.tune(settings, dataset=where.dataset, spark=where.spark)
    return Searched(tuned, time.perf_counter() - started)
