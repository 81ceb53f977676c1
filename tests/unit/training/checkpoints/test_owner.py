"""One driver at a time has a run: processes that are stopped and killed, and two that want the same."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from sparkdl.errors import ConfigError, TrainingError
from sparkdl.training.checkpoints import owner as module
from sparkdl.training.checkpoints.owner import Owner

PROGRAM = """
import sys, time
from sparkdl.training.checkpoints import owner
owner.RENEW_SECONDS, owner.DEAD_SECONDS = 0.1, 2.0
with owner.Owner(sys.argv[1]) as owner:
    print("owns", flush=True)
    while True:
        owner.check()
        time.sleep(0.05)
"""


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RENEW_SECONDS", 0.1)
    monkeypatch.setattr(module, "DEAD_SECONDS", 2.0)
    monkeypatch.setattr(module, "WATCH_SECONDS", 0.1)


@contextmanager
def another_driver(folder: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "owns\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_live_run_is_not_adopted_and_the_error_says_whose_it_is_and_where(tmp_path: Path) -> None:
    with another_driver(tmp_path) as process:
        words = rf"the run in {tmp_path} is going on: the driver on host \S+ \(process {process.pid}\) has it"
        for _ in range(2):
            with pytest.raises(ConfigError, match=words), Owner(str(tmp_path)):
                pytest.fail("a live run was adopted")


def test_the_run_of_a_killed_driver_is_adopted(tmp_path: Path) -> None:
    with another_driver(tmp_path) as process:
        process.kill()
        with Owner(str(tmp_path)) as owner:
            owner.check()


def test_a_run_that_was_let_go_is_adopted_at_once_however_often(tmp_path: Path) -> None:
    started = time.monotonic()
    for _ in range(5):
        with Owner(str(tmp_path)):
            pass
    assert time.monotonic() - started < module.DEAD_SECONDS
    assert len(list(tmp_path.iterdir())) == 1


def test_a_driver_that_was_taken_for_dead_stops_when_it_wakes_up(tmp_path: Path) -> None:
    with another_driver(tmp_path) as process:
        process.send_signal(signal.SIGSTOP)
        with Owner(str(tmp_path)) as owner:
            process.send_signal(signal.SIGCONT)
            _, error = process.communicate(timeout=60)
            owner.check()
    assert process.returncode == 1
    assert f"the driver on host {os.uname().nodename} (process {os.getpid()})" in error


def test_of_many_that_want_the_run_of_a_dead_driver_one_gets_it(tmp_path: Path) -> None:
    content = {"host": "elsewhere", "process": 1, "changed": ""}
    (tmp_path / "owner-000007.json").write_text(json.dumps(content))
    together, over = threading.Barrier(8), threading.Event()

    def adopt(_: int) -> str:
        together.wait()
        try:
            with Owner(str(tmp_path)):
                over.wait(30)
                return "has it"
        except ConfigError as error:
            return str(error)

    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(adopt, number) for number in range(8)]
        while sum(future.done() for future in futures) < 7:
            time.sleep(0.05)
        over.set()
        found = sorted(future.result() for future in futures)
    assert found.count("has it") == 1
    assert all("is going on: the driver on host" in text for text in found if text != "has it")


def test_a_clock_that_is_wrong_makes_nobody_dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with another_driver(tmp_path):
        monkeypatch.setattr(time, "time", lambda: 4e9)
        for path in tmp_path.iterdir():
            os.utime(path, (0, 0))
        with pytest.raises(ConfigError, match="is going on"), Owner(str(tmp_path)):
            pytest.fail("a live run was adopted")


def test_storage_that_fails_for_a_while_takes_the_run_from_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(folder: str) -> int:
        raise OSError("no answer")

    with Owner(str(tmp_path)) as owner:
        with monkeypatch.context() as patch:
            patch.setattr(module, "_newest", fail)
            time.sleep(0.5)
        owner.check()
        with pytest.raises(ConfigError, match="is going on"), Owner(str(tmp_path)):
            pytest.fail("a live run was adopted")
        with pytest.raises(TrainingError, match="counted as dead"):
            (tmp_path / "owner-000002.json").write_text(json.dumps({"host": "elsewhere", "process": 1}))
            time.sleep(0.5)
            owner.check()
