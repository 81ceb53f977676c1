"""Tracking over the network: a real server in a process of its own, which can be killed."""

import logging
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch
from mlflow import MlflowClient

from sparkdl.errors import TrackingError
from sparkdl.models import NETWORK_FILE, build, export_network
from sparkdl.settings import Tracking
from sparkdl.tracking import download, start_run

START_SECONDS = 120  # a server makes its tables first


class Server:
    """An ``mlflow server`` that keeps artifacts itself, as one on another machine would."""

    def __init__(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = int(free.getsockname()[1])
        self.uri = f"http://127.0.0.1:{self.port}"
        command = [sys.executable, "-m", "mlflow", "server", "--port", str(self.port), "--workers", "1"]
        command += ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db"]
        command += ["--artifacts-destination", str(folder / "artifacts")]
        self.log = folder / "server.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | {"HOME": str(folder)})
        self._wait()

    def _wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            try:
                urllib.request.urlopen(f"{self.uri}/health", timeout=5).close()
                return
            except OSError:
                time.sleep(0.3)
        self.kill()
        pytest.fail(f"the server did not start in {START_SECONDS} s\n{self.log.read_text()[-3000:]}")

    def kill(self) -> None:
        """End the server and its workers at once."""
        if self.process.poll() is None:
            processes = [*psutil.Process(self.process.pid).children(recursive=True), psutil.Process(self.process.pid)]
            for process in processes:
                process.kill()
            self.process.wait()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    server.kill()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    export_network(build("mlp", input_shape=(3,), num_classes=2), folder / NETWORK_FILE, torch.zeros(1, 3))
    (folder / "card.json").write_text("{}")
    return folder


def test_a_run_on_a_server_is_recorded_registered_and_fetched_back(
    server: Server, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = Tracking(uri=server.uri, experiment="far", register_as="far-model")
    with start_run(settings, params={f"p{i}": i for i in range(150)}) as run:
        for step in range(1500):
            run.log_metrics({"loss": 1 / (step + 1)}, step=step)
        registered = run.register(run.log_model(folder, inputs={"a": "double"}), {"test_accuracy": 0.9})
    client = MlflowClient(server.uri)
    kept = client.get_run(run.run_id)
    assert kept.info.status == "FINISHED"
    assert len(kept.data.params) == 150
    assert kept.data.metrics["loss"] == pytest.approx(1 / 1500)
    found = download(f"models:/{registered.name}@candidate", settings)
    assert (found / NETWORK_FILE).read_bytes() == (folder / NETWORK_FILE).read_bytes()
    assert download(registered.uri, settings) == found  # fetched once
    assert not list(tmp_path.iterdir())  # nothing is kept where the program happens to run


def test_a_server_that_dies_in_the_middle_does_not_stop_training(
    server: Server, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Tracking(uri=server.uri, register_as="far-model")
    start = time.monotonic()
    with caplog.at_level(logging.WARNING, "sparkdl.tracking"), start_run(settings, params={}) as run:
        run.log_metrics({"loss": 1.0}, step=0)
        server.kill()
        for step in range(1, 100):
            run.log_metrics({"loss": 1.0}, step=step)
        run.log_artifact(folder / "card.json")
        with pytest.raises(TrackingError, match="cannot use the tracking store"):
            run.log_model(folder, inputs={"a": "double"})
    assert time.monotonic() - start < 30
    assert sum("training goes on without" in record.message for record in caplog.records) == 1
    assert any("were never delivered" in record.message for record in caplog.records)
