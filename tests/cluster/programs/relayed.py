"""What tests/cluster/test_relay.py runs as a client that executors cannot reach: reported as one line of JSON."""

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch

import sparkdl
from sparkdl import Cluster, Prepare, Tracking, Train
from sparkdl.cluster import Rank, Timeouts, count_slots, run_ranks
from sparkdl.collectives import TorchBackend
from sparkdl.errors import SparkdlError

FOLDER = Path(sys.argv[1])
BACKEND = TorchBackend()


def all_reduce(rank: Rank) -> float:
    print("a line of a rank")
    rank.send("hello", text="x" * (1 << 19))
    with BACKEND.connect() as collectives:
        return float(collectives.all_reduce(torch.tensor([rank.rank + 1.0]), op="sum").item())


def wait_for_the_order(rank: Rank) -> str:
    for step in range(600):
        if rank.stop_requested:
            return "stopped"
        rank.beat(step)
        time.sleep(0.1)
    return "never heard"


def fail(rank: Rank) -> None:
    if rank.rank == 1:
        raise ValueError("boom")
    while True:
        time.sleep(0.1)


def lose_the_meeting_place(rank: Rank) -> None:
    time.sleep(10)  # in which the client hears, by a task of Spark's, that there are ranks
    if rank.rank == 0:
        os._exit(9)
    while True:
        time.sleep(0.1)


def stopped() -> list[str]:
    stop = threading.Event()
    threading.Timer(2.0, stop.set).start()
    return run_ranks(wait_for_the_order, 2, spark=spark, stop=stop)


def work_on(rank: Rank) -> None:
    print("at work")
    while True:
        time.sleep(0.1)


def refusal(work: Any, num_ranks: int) -> str:
    try:
        run_ranks(work, num_ranks, spark=spark, slot_timeout=0.5)
    except SparkdlError as error:
        return f"{type(error).__name__}: {error}"
    return "it was not refused"


def train_points(num_ranks: int, **options: Any) -> Any:
    settings = Train(**{"epochs": 2, "batch_size": 8, "run_dir": f"{FOLDER}/runs"} | options)
    tracking = Tracking(uri=f"sqlite:///{FOLDER}/mlflow.db", spool=f"{FOLDER}/spool")
    cluster = Cluster(num_ranks=num_ranks, slot_timeout=0.5)
    trained = sparkdl.train(f"{FOLDER}/prepared", settings, cluster=cluster, tracking=tracking, spark=spark)
    return trained.history


spark = sparkdl.get_session()
if sys.argv[2:] == ["killed"]:
    run_ranks(work_on, 2, spark=spark, timeouts=Timeouts(silence_timeout=5))
if sys.argv[2:] == ["hurt"]:
    train_points(2, epochs=10_000, batch_size=1, strategy={"kind": "downpour"})
heard: list[tuple[int, int]] = []
report: dict[str, Any] = {}
for name in ("first", "next"):
    started = time.monotonic()
    report[name] = run_ranks(
        all_reduce,
        2,
        spark=spark,
        backend=BACKEND,
        on_message=lambda rank, body: heard.append((rank, len(body["text"]))),
    )
    report[f"{name} seconds"] = time.monotonic() - started
report["heard"] = sorted(heard)
report["slots"] = count_slots(spark)
report["stopped"] = stopped()
report["raising"] = refusal(fail, 2)
report["lost"] = refusal(lose_the_meeting_place, 2)
report["too many"] = refusal(all_reduce, 5)
rows = [(float(row), float(-row % 7), "ab"[row % 2]) for row in range(120)]
points = spark.createDataFrame(rows, "size double, rest double, kind string")
dataset = sparkdl.prepare(points, Prepare(output=f"{FOLDER}/prepared", label="kind"), spark=spark)
report["train"] = len(train_points(2))
report["rows"] = dataset.rows("train")
report["asynchronous"] = [epoch["rows"] for epoch in train_points(2, strategy={"kind": "downpour"})]
try:
    train_points(3, strategy={"kind": "downpour"})
except SparkdlError as error:
    report["too many workers"] = f"{type(error).__name__}: {error}"
report["runs"] = len(list(Path(FOLDER, "runs").iterdir()))
print(json.dumps(report))
