"""Rows per second of ``sparkdl.score`` beside ``mlflow.pyfunc.spark_udf`` of the same model, on one slot; then a table.

The rows lie in memory as one partition, so that one task works; both give label, probability and the five likeliest
classes of every row, and the result is computed in full and thrown away (Spark's ``noop`` sink).
"""

from statistics import median
from tempfile import TemporaryDirectory

import mlflow
import mlflow.pyfunc
from pyspark.sql import functions as F  # noqa: N812 - what Spark's own documentation calls it

import sparkdl
from benchmarks import score_table
from benchmarks.images import image_dataset, images
from benchmarks.report import Report, Target
from benchmarks.turns import take_turns

__all__ = ["run"]

ROWS = {"mlp": 60_000, "cnn": 10_000}
ROUNDS = 5
RESULT = "prediction string, probability double, top_k array<struct<label:string,probability:double>>"


def run() -> list[Report]:
    """Measure images, then a table of numbers. Runs on the driver."""
    return [_run_images(), score_table.run()]


def _run_images() -> Report:
    """Both in turn, with a network that is quick to compute and with one that is not."""
    rows: list[list[str | float]] = []
    targets: list[Target] = []
    with image_dataset(1_000) as (spark, dataset), TemporaryDirectory() as folder:
        store = f"sqlite:///{folder}/mlflow.db"
        tracking = sparkdl.Tracking(uri=store, spool=f"{folder}/spool")
        mlflow.set_tracking_uri(store)  # where spark_udf looks for models
        for model, count in ROWS.items():
            settings = sparkdl.Train(model=model, epochs=1, run_dir=f"{folder}/runs")
            cluster = sparkdl.Cluster(num_ranks=1)
            uri = sparkdl.train(dataset, settings, cluster=cluster, tracking=tracking, spark=spark).model_uri
            raw = images(spark, count).coalesce(1).cache()
            raw.count()
            answer = mlflow.pyfunc.spark_udf(spark, uri, env_manager="local", result_type=RESULT)
            by_udf = raw.withColumn("answer", answer(F.struct("image")))
            ours = sparkdl.score(raw, uri, tracking=tracking)
            mine, theirs = take_turns({"ours": ours, "theirs": by_udf}, count, ROUNDS).values()
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
