"""One synchronous or asynchronous training on Spark, without tracking and registry."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pyspark.sql import SparkSession

import sparkdl
from benchmarks.asynchronous.slowed import slowed
from sparkdl.collectives import TorchBackend
from sparkdl.settings.strategies import AsynchronousOptions
from sparkdl.training.asynchronous.driver import train_asynchronously
from sparkdl.training.attempts import run_attempts
from sparkdl.training.job import Job, TrainingResult

__all__ = ["PACE", "SLOWNESS", "fit", "on_slow_cores"]

PACE = 3.0
"""How many times its processor time a worker takes where times are compared: so two cores have room for four."""
SLOWNESS = 5.0
"""How many times as long as the others the slow one of the workers takes."""


def fit(
    spark: SparkSession,
    dataset: sparkdl.Dataset,
    settings: dict[str, Any],
    *,
    workers: int,
    pace: float = 1.0,
    slowness: float = 1.0,
) -> TrainingResult:
    """Train as :func:`sparkdl.train` does, with a thread for each worker. Runs on the driver.

    Each worker takes ``pace`` times the time that it computes for, and one of them ``slowness`` times that.
    """
    with TemporaryDirectory() as folder:
        if pace > 1 or slowness > 1:
            mark = str(Path(folder, "slow")) if slowness > 1 else None
            settings = on_slow_cores(settings, pace=pace, slowness=slowness, mark=mark)
        chosen = sparkdl.Train(**settings)
        job = Job(dataset, chosen, folder, TorchBackend(), workers)
        train = train_asynchronously if isinstance(chosen.strategy, AsynchronousOptions) else run_attempts
        return train(
            job,
            sparkdl.Cluster(num_ranks=workers),
            spark,
            on_message=lambda rank, message: None,
            on_checkpoint=lambda checkpoint: None,
        )


def on_slow_cores(
    settings: dict[str, Any], *, pace: float, slowness: float = 1.0, mark: str | None = None
) -> dict[str, Any]:
    """The settings with a network that computes as on slower cores: see :mod:`benchmarks.asynchronous.slowed`."""
    inner = {"network": settings["model"], "options": settings.get("model_options", {})}
    return settings | {"model": slowed, "model_options": inner | {"mark": mark, "pace": pace, "slowness": slowness}}
