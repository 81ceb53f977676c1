"""One training on Spark, in lockstep or without it, with nothing around it: no tracking, no registry."""

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
from sparkdl.training.loop import Job, TrainingResult

__all__ = ["SLOWNESS", "fit"]

SLOWNESS = 5.0
"""How many times as long the slow one of the workers takes."""


def fit(
    spark: SparkSession,
    dataset: sparkdl.Dataset,
    settings: dict[str, Any],
    *,
    workers: int,
    slowness: float | None = None,
) -> TrainingResult:
    """Train as :func:`sparkdl.train` does, with a thread for each worker. Runs on the driver.

    ``slowness``: one of the workers takes so many times as long.
    """
    with TemporaryDirectory() as folder:
        if slowness:
            inner = {"network": settings["model"], "options": settings.get("model_options", {})}
            options = inner | {"mark": str(Path(folder, "slow")), "times": slowness}
            settings = settings | {"model": slowed, "model_options": options}
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
