"""Rows per second of ``sparkdl.score`` beside ``mlflow.pyfunc.spark_udf`` of the same registered model, on one slot.

The rows lie in memory as one partition, so that one task works; both give label, probability and the five likeliest
classes of every row, and the result is computed in full and thrown away (Spark's ``noop`` sink).
"""

import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import mlflow.pyfunc
import pandas as pd
import torch
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - what Spark's own documentation calls it

from benchmarks.images import image_dataset, images
from benchmarks.report import Report, Target
from sparkdl.data import Dataset
from sparkdl.models import NETWORK_FILE, build, export_network
from sparkdl.scoring.dataframe import score
from sparkdl.settings import Tracking
from sparkdl.tracking import download_whole, start_run

__all__ = ["run"]

ROWS = {"mlp": 60_000, "cnn": 10_000}
ROUNDS = 5
RESULT = "prediction string, probability double, top_k array<struct<label:string,probability:double>>"


def run() -> Report:
    """Measure both in turn, with a network that is quick to compute and with one that is not. Runs on the driver."""
    rows: list[list[str | float]] = []
    targets: list[Target] = []
    with image_dataset(1_000) as (spark, dataset), TemporaryDirectory() as folder:
        tracking = Tracking(uri=f"sqlite:///{folder}/mlflow.db", register_as="benchmark")
        for model, count in ROWS.items():
            uri = _register(dataset, model, tracking)
            raw = images(spark, count).coalesce(1).cache()
            raw.count()
            saved = str(download_whole(uri, tracking))
            answer = mlflow.pyfunc.spark_udf(spark, saved, env_manager="local", result_type=RESULT)
            by_udf = raw.withColumn("answer", answer(F.struct("image")))
            ours = score(raw, uri, tracking=tracking)
            mine, theirs = _take_turns(ours, by_udf, count)
            raw.unpersist()
            ratio = median(a / b for a, b in zip(mine, theirs, strict=True))
            rows += [[model, "sparkdl.score", median(mine), ratio], [model, "mlflow spark_udf", median(theirs), 1.0]]
            if model == "mlp":
                targets.append(Target("mlp: rows/s over spark_udf's", ratio, 2.0))
    return Report(
        title="score: one slot, images of 28 x 28",
        columns=["network", "through", "rows/s", "ratio"],
        rows=rows,
        targets=targets,
        note=f"Medians of {ROUNDS} rounds after a warm-up, taken in turn; ratio of each pair. The target is set on the"
        " network that is quick to compute: in the convolutional one, both spend most of their time in the same"
        " convolutions.",
    )


def _register(dataset: Dataset, model: str, tracking: Tracking) -> str:
    """Register an untrained network, which computes as fast as a trained one."""
    spec = dataset.input
    network = build(model, input_shape=spec.shape, num_classes=dataset.num_classes, mean=spec.mean, std=spec.std)
    with TemporaryDirectory() as folder, start_run(tracking, params={"model": model}) as run:
        export_network(network, Path(folder) / NETWORK_FILE, torch.zeros(1, *spec.shape, dtype=torch.uint8))
        Path(folder, "card.json").write_text(dataset.card_json)
        example = pd.DataFrame({spec.column: [bytes(spec.row_bytes)]})
        model_uri = run.log_model(folder, inputs=dataset.raw_columns, example=example)
        registered = run.register(model_uri, {})
    return registered.uri if registered else model_uri


def _take_turns(ours: DataFrame, theirs: DataFrame, rows: int) -> tuple[list[float], list[float]]:
    """Rows per second of each, round by round; the first round only warms up."""
    rates: tuple[list[float], list[float]] = ([], [])
    for round_ in range(ROUNDS + 1):
        for frame, rate in zip((ours, theirs), rates, strict=True):
            started = time.perf_counter()
            frame.write.format("noop").mode("overwrite").save()
            if round_:
                rate.append(rows / (time.perf_counter() - started))
    return rates
