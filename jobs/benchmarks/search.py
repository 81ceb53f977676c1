"""A grid search by ``CrossValidator``: one fit after another, and two at a time, on four slots with two ranks a fit.

The fits are small, so that starting and waiting is most of their time. What limits two at a time is what has nothing
beside it (the rows of a fold are prepared once, for all its fits, and the last model is fitted on all rows), the cores
of the machine, and the driver, which both share.
"""

import tempfile
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

import click
import numpy as np
import psutil
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.tuning import CrossValidator, ParamGridBuilder
from pyspark.sql import DataFrame, SparkSession

import sparkdl
from benchmarks.report import Report, Target
from benchmarks.standalone import standalone_cluster

__all__ = ["run"]

ROOT = Path(sparkdl.__file__).parents[1]
RATES = [0.03, 0.01, 0.003, 0.001]
FOLDS, ROWS, FEATURES, REPEATS = 3, 600, 20, 3
FITS = FOLDS * len(RATES)
ATONCE = 2


class _Search(NamedTuple):
    seconds: float
    busy: float
    """The share of the machine's cores that computed, here or elsewhere in it."""


def run() -> Report:
    """Start the cluster, search both ways in turn, stop the cluster. Runs on the driver, where no Spark may run yet."""
    if SparkSession.getActiveSession():
        raise click.ClickException("search starts a cluster of its own; stop the running Spark session first")
    searches: dict[int, list[_Search]] = {1: [], ATONCE: []}
    with (
        tempfile.TemporaryDirectory() as folder,
        standalone_cluster(Path(folder), cores=(2, 2), pythonpath=str(ROOT)) as cluster,
    ):
        spark = sparkdl.get_session(
            sparkdl.Cluster(options={"spark.master": cluster.master_url, "spark.executor.memory": "600m"})
        )
        rows = _rows(spark).cache()
        for parallelism in (ATONCE, *(1, ATONCE) * REPEATS):
            searches[parallelism].append(_search(rows, parallelism, folder))
        spark.stop()
    searches[ATONCE].pop(0)  # which warmed the cluster
    seconds = {name: [search.seconds for search in found] for name, found in searches.items()}
    busy = {name: median(search.busy for search in found) for name, found in searches.items()}
    return Report(
        title=f"search: CrossValidator, {FITS} fits and one on all rows, four slots, two ranks a fit",
        columns=["parallelism", "median s", "fastest s", "slowest s", "cores busy", "searches"],
        rows=[
            [str(name), median(times), min(times), max(times), f"{busy[name]:.0%}", str(len(times))]
            for name, times in seconds.items()
        ],
        targets=[Target("times faster with two at a time", median(seconds[1]) / median(seconds[ATONCE]), 1.6)],
        note=f"Less than {(FITS + 1) / (FITS / ATONCE + 1):.2f} times in any case: the last fit has nothing beside it,"
        " nor has the preparing of a fold's rows, which its fits share. No more than"
        f" {1 / busy[1]:.2f} times on this machine, as far as its cores are busy with one at a time.",
    )


def _search(rows: DataFrame, parallelism: int, folder: str) -> _Search:
    classifier = sparkdl.TorchClassifier(
        epochs=1, batch_size=64, num_ranks=2, store=f"{folder}/store", tracking_uri=f"sqlite:///{folder}/mlflow.db"
    )
    search = CrossValidator(
        estimator=classifier,
        estimatorParamMaps=ParamGridBuilder().addGrid(classifier.getParam("learning_rate"), RATES).build(),
        evaluator=MulticlassClassificationEvaluator(metricName="accuracy"),
        numFolds=FOLDS,
        parallelism=parallelism,
        seed=0,
    )
    psutil.cpu_percent()  # from here on
    started = time.perf_counter()
    search.fit(rows)
    return _Search(time.perf_counter() - started, psutil.cpu_percent() / 100)


def _rows(spark: SparkSession) -> DataFrame:
    """Points around two centres."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, ROWS)
    points = random.normal(size=(ROWS, FEATURES)) + labels[:, None]
    columns = zip(points.tolist(), labels.tolist(), strict=True)
    return spark.createDataFrame(columns, "features array<double>, label int").repartition(2)
