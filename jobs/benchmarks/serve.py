"""How soon MLflow's server answers with a registered model, and how fast one row, beside MLflow's own PyTorch flavour.

Both serve the same layers on the same 20 numbers by ``mlflow models serve``, in this environment and without Java.
Sparkdl's answers are label, probability and the likeliest labels, the flavour's are logits.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import mlflow.pyfunc
import mlflow.pytorch
import numpy as np
import pandas as pd
import psutil
import torch
from mlflow.models import infer_signature

import sparkdl
from benchmarks.images import session
from benchmarks.ports import free_ports
from benchmarks.report import Report, Target
from benchmarks.score_table import COLUMNS, LAYERS, train_on_table
from sparkdl.tracking import download_whole

__all__ = ["run"]

OURS, FLAVOUR = "sparkdl", "mlflow.pytorch"
PATIENCE = 300
"""Seconds that a server may take to answer."""
WARM_UP = 20


def run(starts: int = 3, requests: int = 300) -> Report:
    """Start servers in turn, and ask the last one of each for one row at a time. Runs on the driver."""
    with TemporaryDirectory() as folder:
        tracking = sparkdl.Tracking(uri=f"sqlite:///{folder}/mlflow.db", spool=f"{folder}/spool")
        with session() as spark:
            model = train_on_table(spark, folder, tracking)
        models = {OURS: download_whole(model, tracking), FLAVOUR: _of_flavour(Path(folder, "flavour"))}
        command: list[float] = []
        first: dict[str, list[float]] = {name: [] for name in models}
        warm: dict[str, float] = {}
        for _ in range(starts):
            command.append(_seconds(lambda: subprocess.run([*_MLFLOW, "--version"], env=_environment(), check=True)))
            for name, place in models.items():
                with _serving(place, Path(folder)) as ask:
                    first[name].append(_seconds(ask))
                    warm[name] = _milliseconds(ask, requests)
        inside = {name: _milliseconds(_predicting(place), requests) for name, place in models.items()}
    start, row = "first answer after `mlflow models serve`, s", "one row over HTTP, p50, ms"
    return Report(
        title=f"serve: {len(COLUMNS)} numbers, mlp",
        columns=["measure", OURS, FLAVOUR, "bar"],
        rows=[
            [start, median(first[OURS]), median(first[FLAVOUR]), 5.0],
            ["of it, MLflow's command before it starts the server, s", median(command), median(command), ""],
            [row, warm[OURS], warm[FLAVOUR], 3.0],
            ["one row in the loaded model, p50, ms", inside[OURS], inside[FLAVOUR], ""],
        ],
        targets=[
            Target(start, median(first[OURS]), 5.0, at_most=True),
            Target(row, warm[OURS], 3.0, at_most=True),
        ],
        note=f"Medians of {starts} starts in turn, and of {requests} rows one after another; `mlflow --version` stands"
        " for the command.",
    )


_MLFLOW = [sys.executable, "-m", "mlflow"]


def _environment() -> dict[str, str]:
    """Variables of a server: no Java, and this environment's commands alone."""
    left_out = ("PYTHONPATH", "JAVA_HOME", "SPARK_HOME")
    path = os.pathsep.join([str(Path(sys.executable).parent), "/usr/bin", "/bin"])
    return {name: value for name, value in os.environ.items() if name not in left_out} | {"PATH": path}


def _row() -> pd.DataFrame:
    return pd.DataFrame(np.random.default_rng(0).standard_normal((1, len(COLUMNS))), columns=COLUMNS)


def _of_flavour(place: Path) -> Path:
    """The same layers as MLflow keeps a network of PyTorch."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(width, next_width) for width, next_width in pairwise(LAYERS)]
    network = torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1], torch.nn.ReLU(), layers[2]).eval()
    needs = [f"torch=={torch.__version__.partition('+')[0]}"]
    signature = infer_signature(_row(), pd.DataFrame(np.zeros((1, LAYERS[-1]), np.float32)))
    pickled: dict[str, Any] = {"serialization_format": "pickle"}  # the other form takes PyTorch's exporter to load
    mlflow.pytorch.save_model(network, str(place), signature=signature, pip_requirements=needs, **pickled)
    return place


@contextmanager
def _serving(model: Path, folder: Path) -> Iterator[Callable[[], None]]:
    """A server that is about to start, and how it is asked for one row: until it answers the first time."""
    (port,) = free_ports(1)
    command = [*_MLFLOW, "models", "serve", "--env-manager", "local", "--model-uri", str(model), "--workers", "1"]
    body = json.dumps({"dataframe_split": _row().to_dict(orient="split", index=False)})
    with (folder / "server.log").open("w") as log:
        process = subprocess.Popen(
            [*command, "--port", str(port)], env=_environment(), stdout=log, stderr=log, cwd=folder
        )
    connection, began = HTTPConnection("127.0.0.1", port, timeout=PATIENCE), time.monotonic()

    def ask() -> None:
        while True:
            try:
                connection.request("POST", "/invocations", body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                content = answer.read()
            except (OSError, HTTPException):
                connection.close()
                if process.poll() is not None or time.monotonic() > began + PATIENCE:
                    raise RuntimeError((folder / "server.log").read_text()[-3000:]) from None
                time.sleep(0.01)
                continue
            if answer.status != 200:
                raise RuntimeError(content.decode())
            return

    try:
        yield ask
    finally:
        connection.close()
        for each in [*psutil.Process(process.pid).children(recursive=True), process]:
            each.kill()
        process.wait()


def _predicting(model: Path) -> Callable[[], object]:
    loaded, row = mlflow.pyfunc.load_model(str(model)), _row()
    return lambda: loaded.predict(row)


def _seconds(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def _milliseconds(act: Callable[[], object], times: int) -> float:
    """The median of so many, after a few that do not count."""
    for _ in range(WARM_UP):
        act()
    return 1000 * median(_seconds(act) for _ in range(times))
