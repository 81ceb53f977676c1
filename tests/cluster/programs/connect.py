"""What tests/cluster/test_connect.py runs as a client of Spark Connect: each job once, reported as one line of JSON."""

import json
import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import own_network  # beside this program, where no executor finds it
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from pyspark.ml.linalg import Vectors

import sparkdl
from sparkdl import Cluster, Extreme, Prepare, Source, Stage, TorchEstimator, TorchModel, TorchRanker, Tracking, Train
from sparkdl.cluster import Rank, run_ranks
from sparkdl.collectives import TorchBackend
from sparkdl.data.sql import condition
from sparkdl.errors import SparkdlError

FOLDER = Path(sys.argv[1])
TRACKING = Tracking(uri=f"sqlite:///{FOLDER}/mlflow.db", spool=f"{FOLDER}/spool", register_as="points")
BACKEND = TorchBackend()


def all_reduce(rank: Rank) -> list[float]:
    print("a line of a rank")
    with BACKEND.connect() as collectives:
        total = collectives.all_reduce(torch.tensor([rank.rank + 1.0]), op="sum").item()
    return [total, float(os.getpid())]


def fail(rank: Rank) -> None:
    raise ValueError("boom")


def wait_forever(rank: Rank) -> None:
    rank.send("started")
    while True:
        rank.beat()
        time.sleep(0.1)


def outcome(work: Callable[[], Any]) -> dict[str, Any]:
    """What a job gives, or its error by name, and the seconds that it took."""
    started = time.monotonic()
    try:
        found = {"result": work()}
    except SparkdlError as error:
        found = {"error": type(error).__name__, "message": str(error)}
    except Exception:
        found = {"error": "not ours", "message": traceback.format_exc()[-6000:]}
    return found | {"seconds": time.monotonic() - started}


def prepare_points() -> Any:
    rows = [(float(row), float(-row % 7), "ab"[row % 2]) for row in range(120)]
    spark.createDataFrame(rows, "size double, rest double, kind string").write.parquet(f"file://{FOLDER}/points")
    source = Source(format="parquet", path=f"{FOLDER}/points")
    stages = [Stage(kind="standardise", columns=["size", "rest"])]
    settings = Prepare(output=f"{FOLDER}/prepared", source=source, label="kind", stages=stages)
    dataset = sparkdl.prepare(None, settings, spark=spark)
    dataset.verify(spark)
    return {split: dataset.rows(split) for split in dataset.splits}


def train_points() -> Any:
    settings = Train(model="own_network:Net", epochs=2, batch_size=8, run_dir=f"{FOLDER}/runs")
    cluster = Cluster(num_ranks=2, backend="torch")
    trained = sparkdl.train(f"{FOLDER}/prepared", settings, cluster=cluster, tracking=TRACKING, spark=spark)
    return {"epochs": len(trained.history), "uri": trained.model_uri}


def train_asynchronously() -> Any:
    options = {"epochs": 2, "batch_size": 8, "run_dir": f"{FOLDER}/runs"}
    settings = Train(model=own_network.Net, strategy="downpour", **options)
    tracking = TRACKING.model_copy(update={"register_as": None})
    cluster = Cluster(num_ranks=1, servers=1)
    trained = sparkdl.train(f"{FOLDER}/prepared", settings, cluster=cluster, tracking=tracking, spark=spark)
    return [epoch["rows"] for epoch in trained.history]


def score_points() -> Any:
    rows = spark.read.parquet(f"file://{FOLDER}/points")
    scored = sparkdl.score(rows, "models:/points@candidate", tracking=TRACKING)
    written = sparkdl.write_predictions(scored, f"{FOLDER}/predictions")
    return {"rows": written.rows, "failed": written.failed}


def score_nulls() -> None:
    rows = spark.createDataFrame([(1.0, None, "a")], "size double, rest double, kind string")
    sparkdl.write_predictions(sparkdl.score(rows, "models:/points@candidate", tracking=TRACKING), f"{FOLDER}/nulls")


def train_texts() -> Any:
    """Many classes of texts: count_text, sparse rows, two repetitions as two tasks."""
    rows = [(f"word{row % 8} word{row % 3}", f"class{row % 8}") for row in range(160)]
    texts = spark.createDataFrame(rows, "text string, label string")
    stages = [Stage(kind="count_text", columns=["text"])]
    dataset = sparkdl.prepare(texts, Prepare(output=f"{FOLDER}/texts", sparse=True, stages=stages), spark=spark)
    settings = Extreme(repetitions=2, buckets=4, hidden=[], run_dir=f"{FOLDER}/extreme", ranker="none")
    tracking = TRACKING.model_copy(update={"register_as": None})
    trained = sparkdl.train_extreme(dataset, settings, tracking=tracking, spark=spark)
    return {"repetitions": len(trained.repetitions), "missing": trained.missing}


def fit_estimator() -> Any:
    rows = [(Vectors.dense([row % 2 + 0.1, row]), float(row % 2)) for row in range(80)]
    vectors = spark.createDataFrame(rows, ["features", "label"])
    estimator = TorchEstimator(epochs=2, batch_size=8, store=f"{FOLDER}/store", tracking_uri=TRACKING.uri)
    model = estimator.fit(vectors)
    model.write().save(f"file://{FOLDER}/estimator")
    loaded = TorchModel.load(f"file://{FOLDER}/estimator")
    return loaded.transform(vectors).where("prediction is not null").count()


def fit_ranker() -> Any:
    rows = [(row // 8, Vectors.dense([row % 8, row % 3]), float(row % 8 // 3)) for row in range(80)]
    results = spark.createDataFrame(rows, ["qid", "features", "label"])
    ranker = TorchRanker(epochs=2, batch_size=2, store=f"{FOLDER}/store", tracking_uri=TRACKING.uri)
    return ranker.fit(results).transform(results.drop("qid", "label")).where("prediction is not null").count()


def open_stranger() -> Any:
    schema = '{"type":"struct","fields":[{"name":"a","nullable":true,"metadata":{},"type":{"type":"udt","pyClass":'
    schema += '"sparkdl_stranger.Type","serializedClass":"","sqlType":"long"}}]}'
    table = pa.table({"a": [1]}).replace_schema_metadata({"org.apache.spark.sql.parquet.row.metadata": schema})
    (FOLDER / "stranger").mkdir()
    pq.write_table(table, FOLDER / "stranger" / "part.parquet")
    sparkdl.open_source(Source(format="parquet", path=f"{FOLDER}/stranger"), spark)


def choose_rows() -> None:
    condition("size > 3", key="score.where")


def cancel_ranks() -> None:
    started = threading.Event()
    threading.Thread(target=lambda: started.wait() and spark.interruptAll(), daemon=True).start()
    run_ranks(wait_forever, 2, spark=spark, on_message=lambda *_: started.set())


def refusal(remote: str) -> str:
    """The last line of a process of its own: a process has one server."""
    environment = os.environ | {"SPARK_REMOTE": remote}
    command = [sys.executable, "-c", "import sparkdl; sparkdl.get_session()"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    return (done.stderr.splitlines() or ["it was not refused"])[-1]


report: dict[str, Any] = {}
spark = sparkdl.get_session()
for name, work in {
    "first launch": partial(run_ranks, all_reduce, 2, spark=spark, backend=BACKEND),
    "next launch": partial(run_ranks, all_reduce, 2, spark=spark, backend=BACKEND),
    "raising": partial(run_ranks, fail, 2, spark=spark),
    "too many": partial(run_ranks, all_reduce, 3, spark=spark, slot_timeout=0.5),
    "prepare": prepare_points,
    "train": train_points,
    "train asynchronously": train_asynchronously,
    "score": score_points,
    "score nulls": score_nulls,
    "train-extreme": train_texts,
    "estimator": fit_estimator,
    "ranker": fit_ranker,
    "stranger": open_stranger,
    "condition": choose_rows,
    "cancelled": cancel_ranks,
    "wrong token": partial(refusal, os.environ["SPARK_REMOTE"] + "x"),
    "wrong address": partial(refusal, "sc://localhost:9"),
    "token without TLS": partial(refusal, os.environ["SPARK_REMOTE"].replace("localhost", "127.0.0.1")),
}.items():
    report[name] = outcome(work)
print(json.dumps(report))
