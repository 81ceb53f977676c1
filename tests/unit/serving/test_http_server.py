"""``sparkdl serve``: the command on a registered model, as a process of its own."""

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.ports import free_ports
from sparkdl import serve
from sparkdl.errors import ConfigError, RegistryError
from sparkdl.settings import Tracking
from sparkdl.tracking import start_run

START_SECONDS = 120


@contextmanager
def serving(model: str, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server that answers, and its address; it is gone afterwards."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "sparkdl", "serve", model, "--port", str(port), *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    address = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                urllib.request.urlopen(f"{address}/health", timeout=5).close()
                break
            except OSError:
                assert process.poll() is None and time.monotonic() < deadline, process.communicate()[1]
                time.sleep(0.1)
        yield process, address
    finally:
        process.kill()
        process.communicate()


def ask(address: str, image: bytes) -> Any:
    body = json.dumps({"inputs": {"image": [b64encode(image).decode()]}}).encode()
    request = urllib.request.Request(f"{address}/invocations", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["predictions"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_registered_model_answers_and_a_signal_ends_the_server_when_all_is_answered(
    number: signal.Signals, images: Path, store: str, tmp_path: Path
) -> None:
    name = f"served-{number}"
    tracking = Tracking(uri=store, register_as=name, spool=str(tmp_path))
    with start_run(tracking, params={}) as run:
        run.register(run.log_model(images, inputs={"image": "binary"}), {"test_accuracy": 0.5})
    options = ["--tracking-uri", store, "--max-wait-ms", "1500", "--max-batch", "3"]
    with serving(f"models:/{name}@candidate", *options) as (process, address), ThreadPoolExecutor(2) as threads:
        first = threads.submit(ask, address, bytes(48))
        second = threads.submit(ask, address, b"\xff" * 48)
        time.sleep(0.5)  # both of them wait for a third one
        process.send_signal(number)
        found = [each.result()[0]["prediction"] for each in (first, second)]
        _, told = process.communicate(timeout=30)
        assert process.returncode == 0, told
    assert set(found) <= {"cat", "dog", "Ünïcode"}
    assert f"models:/{name}@candidate answers at {address}/invocations" in told


def test_an_address_that_is_taken_and_a_model_that_is_not_there_are_named(store: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen at 127.0.0.1, port {port}: Address already in use"):
            serve("models:/none@candidate", port=port, tracking=Tracking(uri=store))
    with pytest.raises(RegistryError, match="there is no registered model 'none'"):
        serve("models:/none@candidate", port=0, tracking=Tracking(uri=store))
    with pytest.raises(ConfigError, match=r"max_batch is 0 .* must be at least 1"):
        serve("models:/none@candidate", max_batch=0)
