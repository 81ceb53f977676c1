"""Tracking over the network: a real server in a process of its own, which is killed, frozen and restarted."""

import http.client
import logging
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from mlflow import MlflowClient
from mlflow.entities import ViewType

from benchmarks.mlflow_server import Server
from benchmarks.ports import free_ports
from sparkdl.models import NETWORK_FILE, build, export_network
from sparkdl.settings import Tracking
from sparkdl.tracking import courier, download, start_run, store, sync
from sparkdl.tracking.figures import loss_curve

Make = Callable[..., Tracking]


class Deaf:
    """A proxy whose client does not hear the first answer to each of the chosen calls: they are done all the same."""

    def __init__(self, server: Server, *calls: str) -> None:
        left = list(calls)
        self.lost: list[str] = []
        deaf = self

        class Handler(BaseHTTPRequestHandler):
            def forward(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                onward = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
                onward.request(self.command, self.path, body, dict(self.headers))
                answer = onward.getresponse()
                content = answer.read()
                call = next((call for call in left if call in self.path and self.command != "GET"), None)
                if call:
                    left.remove(call)
                    deaf.lost.append(call)
                    self.close_connection = True
                    return
                self.send_response(answer.status)
                self.send_header("Content-Type", answer.headers.get("Content-Type", "text/plain"))
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = forward  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.uri = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server"), *free_ports(1))
    server.start()
    try:
        server.wait()
        yield server
    finally:
        server.kill()


@pytest.fixture
def client(server: Server) -> MlflowClient:
    return MlflowClient(server.uri)


@pytest.fixture
def settings(server: Server, tmp_path: Path, request: pytest.FixtureRequest) -> Make:
    """Settings with an experiment and a model name of the test's own."""
    name = request.node.name
    own = {"uri": server.uri, "experiment": name, "register_as": name, "spool": f"{tmp_path}/spool"}
    return lambda **keys: Tracking(**{**own, **keys})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    export_network(build("mlp", input_shape=(3,), num_classes=2), folder / NETWORK_FILE, torch.zeros(1, 3))
    (folder / "card.json").write_text("{}")
    return folder


def _points(client: MlflowClient, run_id: str, key: str = "loss") -> list[tuple[int, float]]:
    return [(metric.step, metric.value) for metric in client.get_metric_history(run_id, key)]


def _runs(client: MlflowClient, settings: Tracking) -> list[str]:
    experiment = client.get_experiment_by_name(settings.experiment)
    assert experiment is not None
    return sorted(run.info.run_name for run in client.search_runs([experiment.experiment_id], "", ViewType.ALL))


def test_a_run_on_a_server_is_recorded_registered_and_fetched_back(
    settings: Make, client: MlflowClient, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with start_run(settings(), params={f"p{i}": i for i in range(150)}) as run:
        for step in range(1500):
            run.log_metrics({"loss": 1 / (step + 1)}, step=step)
        registered = run.register(run.log_model(folder, inputs={"a": "double"}), {"test_accuracy": 0.9})
    kept = client.get_run(run.run_id)
    assert kept.info.status == "FINISHED"
    assert len(kept.data.params) == 150
    assert _points(client, run.run_id) == [(step, 1 / (step + 1)) for step in range(1500)]
    assert registered is not None
    found = download(f"models:/{registered.name}@candidate", settings())
    assert (found / NETWORK_FILE).read_bytes() == (folder / NETWORK_FILE).read_bytes()
    assert download(registered.uri, settings()) == found  # fetched once
    assert not list(tmp_path.iterdir())  # nothing is kept where the program happens to run


def test_a_server_that_is_killed_and_comes_back_has_everything_in_order_and_once(
    server: Server, settings: Make, client: MlflowClient, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    longest = 0.0
    with caplog.at_level(logging.WARNING, "sparkdl.tracking"), start_run(settings(run_name="whole"), params={}) as run:
        for step in range(900):
            if step == 300:
                server.kill()
            if step == 600:
                server.start()
            started = time.perf_counter()
            run.log_metrics({"loss": 1 / (step + 1)}, step=step)
            if step % 300 == 0:
                run.log_child(f"part {step}", params={"step": step}, history=[{"loss": 0.5}, {"loss": 0.25}])
                run.log_dataset(name="digits", digest="ab", source="s3://bucket/x", card="{}")
                run.log_figure(loss_curve([{"train_loss": 0.5}]), f"loss-{step}.png")
            else:
                longest = max(longest, time.perf_counter() - started)
            time.sleep(0.005)
        server.wait()
    assert longest < 5  # who waits for the server waits for much longer; a busy disk may take seconds
    kept = client.get_run(run.run_id)
    assert kept.info.status == "FINISHED"
    assert _points(client, run.run_id) == [(step, 1 / (step + 1)) for step in range(900)]
    assert len(kept.inputs.dataset_inputs) == 1
    assert {"loss-0.png", "loss-300.png", "loss-600.png"} <= {f.path for f in client.list_artifacts(run.run_id)}
    assert _runs(client, settings()) == ["part 0", "part 300", "part 600", "whole"]
    assert sum("training goes on" in record.message for record in caplog.records) == 1
    assert not (tmp_path / "spool").exists()


def test_an_answer_that_gets_lost_does_not_double_anything(
    server: Server, settings: Make, client: MlflowClient, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(courier, "PATIENCE", 300.0)  # each loss costs some of it, and a slow machine's server more
    calls = ["runs/create", "runs/log-batch", "runs/log-batch", "runs/log-inputs", "mlflow-artifacts"]
    deaf = Deaf(server, *calls, "logged-models", "runs/outputs", "model-versions/create", "registered-models/alias")
    ours = settings(uri=deaf.uri, run_name="whole")
    with start_run(ours, params={"a": 1}) as run:
        deaf.lost.clear()
        for step in range(50):
            run.log_metrics({"loss": 1 / (step + 1)}, step=step)
        run.log_dataset(name="digits", digest="ab", source="s3://bucket/x", card="{}")
        registered = run.register(run.log_model(folder, inputs={"a": "double"}), {"test_accuracy": 0.9})
    assert set(deaf.lost) == {*calls[1:], "logged-models", "runs/outputs", "model-versions/create"} | {
        "registered-models/alias"
    }
    kept = client.get_run(run.run_id)
    assert _runs(client, ours) == ["whole"]
    assert kept.data.params == {"a": "1"}
    assert _points(client, run.run_id) == [(step, 1 / (step + 1)) for step in range(50)]
    assert len(kept.inputs.dataset_inputs) == len(kept.outputs.model_outputs) == 1
    assert len(client.search_logged_models([kept.info.experiment_id])) == 1
    assert registered is not None and registered.version == 1
    assert len(client.search_model_versions(f"name = '{registered.name}'")) == 1


def test_a_frozen_server_holds_nobody_up_and_what_is_kept_is_delivered_later_and_once(
    server: Server,
    settings: Make,
    client: MlflowClient,
    folder: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "3")
    monkeypatch.setattr(store, "REACH_SECONDS", 1.0)
    monkeypatch.setattr(courier, "PATIENCE", 4.0)
    ours = settings(uri=server.uri.replace("://", "://me:hunter2@"))
    with caplog.at_level(logging.DEBUG, "sparkdl"):
        try:
            with start_run(ours, params={"uri": ours.uri}, tags={"from": str(ours.uri)}) as run:
                run.log_metrics({"loss": 1.0}, step=0)
                server.signal(signal.SIGSTOP)
                started = time.perf_counter()
                run.log_metrics({"loss": 0.5}, step=1)
                assert time.perf_counter() - started < 3  # what an answer is waited for
                kept = run.log_model(folder, inputs={"a": "double"})
                assert run.register(kept, {"test_accuracy": 0.9}) is None
            assert time.perf_counter() - started < 30
        finally:
            server.signal(signal.SIGCONT)
    assert "deliver them with `sparkdl sync`" in caplog.text
    assert (download(kept, ours) / NETWORK_FILE).read_bytes() == (folder / NETWORK_FILE).read_bytes()
    texts = [path.read_text() for path in (tmp_path / "spool").rglob("*.json*")]
    assert len(texts) > 2 and not any("hunter2" in text for text in [*texts, caplog.text])

    monkeypatch.undo()
    (synced,) = sync(settings())  # whose address has no password in it
    assert synced.left == 0 and "registered, alias 'candidate' points to version 1" in str(synced)
    assert not sync(ours)
    done = client.get_run(run.run_id)
    assert done.info.status == "FINISHED"
    assert "hunter2" not in f"{done.to_dictionary()}{capsys.readouterr()}"
    assert _points(client, run.run_id) == [(0, 1.0), (1, 0.5)]
    (version,) = client.search_model_versions(f"name = '{ours.register_as}'")
    assert version.run_id == run.run_id
    assert not (tmp_path / "spool").exists()


OFFLINE = """
import os, sys
from sparkdl.settings import Tracking
from sparkdl.tracking import start_run
with start_run(Tracking(uri=sys.argv[1], spool=sys.argv[2], experiment="dark", offline=True), params={"a": 1}) as run:
    for step in range(50):
        run.log_metrics({"loss": 1 / (step + 1)}, step=step)
    run.log_child("part", params={}, history=[{"loss": 0.5}])
    print(run.run_id, flush=True)
    os.kill(os.getpid(), 9)
"""


def test_a_run_that_started_offline_and_was_killed_is_delivered_and_goes_on_on_another_day(
    server: Server, settings: Make, client: MlflowClient, tmp_path: Path
) -> None:
    nobody = settings(uri="http://127.0.0.1:9", experiment="dark", offline=True)
    program = [sys.executable, "-c", OFFLINE, str(nobody.uri), nobody.spool]
    killed = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert "cannot use the tracking store" in killed.stderr and "sparkdl sync" in killed.stderr
    local = killed.stdout.strip()
    ours = settings(experiment="dark")
    (elsewhere,) = sync(ours)
    assert elsewhere.left and "set tracking.uri" in str(elsewhere)
    for header in (tmp_path / "spool").glob("*/journal.json"):  # as if the server had been down, and come back
        header.write_text(header.read_text().replace(str(nobody.uri), server.uri))
    assert [synced.left for synced in sync(ours)] == [0]
    assert not sync(ours)
    assert len(_runs(client, ours)) == 2
    with start_run(ours, params={"a": 2}, resume=local) as run:
        for step in range(40, 60):
            run.log_metrics({"loss": 1 / (step + 1)}, step=step)
    experiment = client.get_experiment_by_name("dark")
    assert run.run_id == local and experiment is not None
    (kept,) = client.search_runs([experiment.experiment_id], f"tags.`sparkdl.created_as` = '{local}'")
    assert kept.info.status == "FINISHED"
    assert kept.data.tags["resumed.a"] == "2"
    assert _points(client, kept.info.run_id) == [(step, 1 / (step + 1)) for step in range(60)]
    assert len(_runs(client, ours)) == 2


def test_no_error_shows_a_password(server: Server, settings: Make) -> None:
    for uri in ("http://me:hunter2@127.0.0.1:9", server.uri.replace("://", "://me:hunter2@") + "/wrong"):
        try:
            with start_run(settings(uri=uri), params={}):
                pytest.fail("the run was started")
        except Exception as error:
            assert "hunter2" not in "".join(traceback.format_exception(error))
            assert "hunter2" not in repr(settings(uri=uri))
