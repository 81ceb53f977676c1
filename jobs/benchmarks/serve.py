"""A registered model behind HTTP: by MLflow's server, and by ours.

First how soon MLflow's server answers, and how fast one row, beside MLflow's own PyTorch flavour. Both serve the same
layers on the same 20 numbers by ``mlflow models serve``, in this environment and without Java. Sparkdl's answers are
label, probability and the likeliest labels, the flavour's are logits.

Then how much load ``sparkdl serve`` and ``mlflow models serve`` bear with the same model of images, from clients that
ask for one image each, and again as soon as it is answered. Clients and server share the machine.
"""

import json
import os
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
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
from benchmarks.http_load import Load, ask_server
from benchmarks.images import SHAPE, image_dataset, session
from benchmarks.ports import free_ports
from benchmarks.report import Report, Target
from benchmarks.score_table import COLUMNS, LAYERS, train_on_table
from sparkdl.tracking import download_whole

__all__ = ["run"]

OURS, FLAVOUR = "sparkdl", "mlflow.pytorch"
PATIENCE = 300
"""Seconds that a server may take to answer."""
WARM_UP = 20


def run(starts: int = 3, requests: int = 300, rounds: int = 3, seconds: float = 4.0) -> list[Report]:
    """Both tables. Runs on the driver."""
    return [_answers(starts, requests), _load(rounds, seconds)]


def _answers(starts: int, requests: int) -> Report:
    """Start servers in turn, and ask the last one of each for one row at a time."""
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
                with _serving(_by_mlflow(place), _body(_row()), Path(folder)) as (ask, _):
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


_BY_US, _BY_MLFLOW = "sparkdl serve", "mlflow models serve"
_CLIENTS = 1, 8, 64
_WORKERS = 1, 2
"""Processes that MLflow's server may have; for each number of clients, those with which it answers more count."""


def _load(rounds: int, seconds: float) -> Report:
    """Ask both servers in turn."""
    with TemporaryDirectory() as folder, ExitStack() as stack:
        tracking = sparkdl.Tracking(uri=f"sqlite:///{folder}/mlflow.db", spool=f"{folder}/spool")
        with image_dataset(640) as (spark, dataset):
            settings = sparkdl.Train(model="mlp", epochs=1, run_dir=f"{folder}/runs")
            trained = sparkdl.train(
                dataset, settings, cluster=sparkdl.Cluster(num_ranks=1), tracking=tracking, spark=spark
            )
        model = download_whole(trained.model_uri, tracking)
        image = np.random.default_rng(0).integers(0, 256, SHAPE[0] * SHAPE[1], np.uint8).tobytes()
        body = _body(pd.DataFrame({"image": [b64encode(image).decode()]}))
        commands = {_BY_US: [sys.executable, "-m", "sparkdl", "serve", str(model)]}
        commands |= {f"{_BY_MLFLOW}, {workers} workers": _by_mlflow(model, workers) for workers in _WORKERS}
        ports = {}
        for name, command in commands.items():
            ask, ports[name] = stack.enter_context(_serving(command, body, Path(folder)))
            ask()
        found: dict[tuple[str, int], list[Load]] = {(name, clients): [] for name in ports for clients in _CLIENTS}
        for _ in range(rounds):
            for (name, clients), loads in found.items():
                load = ask_server(ports[name], body.encode(), clients=clients, seconds=seconds, warm_up=seconds / 4)
                loads.append(load)
    most = max(_CLIENTS)
    rates = {each: median(load.per_second for load in loads) for each, loads in found.items()}
    rivals = [name for name in ports if name != _BY_US]
    best = [max(((name, clients) for name in rivals), key=lambda each: rates[each]) for clients in _CLIENTS]
    p99 = median(load.p99 for load in found[_BY_US, most])
    return Report(
        title="serve: 28 x 28 images, mlp, under load",
        columns=["server", "clients", "requests/s", "p50, ms", "p99, ms", "slowest round's p99, ms"],
        rows=[
            [
                *(name, str(clients), median(load.per_second for load in loads)),
                *(median(load.p50 for load in loads), median(load.p99 for load in loads)),
                max(load.p99 for load in loads),
            ]
            for (name, clients), loads in found.items()
            if name == _BY_US or (name, clients) in best
        ],
        targets=[
            Target(f"p99 at {most} clients, ms", p99, 25.0, at_most=True),
            Target(f"requests/s over MLflow's at {most} clients", rates[_BY_US, most] / rates[best[-1]], 5.0),
        ],
        note=f"Medians of {rounds} rounds of {seconds:g} s in turn. MLflow's server with"
        f" {' or '.join(map(str, _WORKERS))} workers, whichever answers so many clients more often.",
    )


_MLFLOW = [sys.executable, "-m", "mlflow"]


def _by_mlflow(model: Path, workers: int = 1) -> list[str]:
    serve = ["models", "serve", "--env-manager", "local", "--model-uri", str(model), "--workers", str(workers)]
    return [*_MLFLOW, *serve]


def _body(rows: pd.DataFrame) -> str:
    return json.dumps({"dataframe_split": rows.to_dict(orient="split", index=False)})


def _environment() -> dict[str, str]:
    """Variables of MLflow's server: no Java, and this environment's commands alone."""
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
def _serving(command: Sequence[str], body: str, folder: Path) -> Iterator[tuple[Callable[[], None], int]]:
    """A server that is about to start, how it is asked: until it answers the first time; and its port."""
    (port,) = free_ports(1)
    told = folder / f"server-{port}.log"
    environment = _environment() if "mlflow" in command else None
    with told.open("w") as log:
        process = subprocess.Popen([*command, "--port", str(port)], env=environment, stdout=log, stderr=log, cwd=folder)
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
                    raise RuntimeError(told.read_text()[-3000:]) from None
                time.sleep(0.01)
                continue
            if answer.status != 200:
                raise RuntimeError(content.decode())
            return

    try:
        yield ask, port
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
