"""Processes that are forked from one which has imported what takes seconds."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from sparkdl.forks import Fork, _Nursery


def describe(result_fd: int) -> None:
    import numpy as np

    found = {
        "variable": os.environ.get("SPARKDL_TESTS"),
        "folder": str(Path.cwd()),
        "path": sys.path[-1],
        "torch": "torch" in sys.modules,
        "number": np.random.rand(),
        "input": sys.stdin.readline(),
        "session": os.getsid(0) == os.getpid(),
    }
    os.write(result_fd, json.dumps(found).encode())


def test_a_fork_finds_everything_as_the_driver_has_it_now(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPARKDL_TESTS", "first")
    assert described()["variable"] == "first"
    monkeypatch.setenv("SPARKDL_TESTS", "second")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    sys.path.append("/its/end")
    found = described()
    assert (found["variable"], found["folder"], found["path"]) == ("second", str(tmp_path), "/its/end")
    assert (found["torch"], found["session"], found["input"]) == (True, True, "hello\n")


def described() -> dict:
    fork = Fork(describe)
    fork.stdin.write(b"hello\n")
    fork.stdin.close()
    with fork.result:
        found = json.loads(fork.result.read())
    assert fork.wait(10) == 0
    return found


def test_each_fork_draws_numbers_of_its_own() -> None:
    assert described()["number"] != described()["number"]


def sleep(result_fd: int) -> None:
    time.sleep(60)


def test_how_a_fork_has_ended_is_told() -> None:
    fork = Fork(sleep)
    with pytest.raises(TimeoutError):
        fork.wait(0.1)
    fork.kill()
    assert fork.wait(10) == fork.returncode == -signal.SIGKILL
    assert Fork(os._exit).wait(10) > 0


def test_a_fork_can_be_killed_as_soon_as_it_is_known() -> None:
    for _ in range(20):
        fork = Fork(sleep)
        assert os.getsid(fork.pid) == fork.pid
        fork.kill()
        assert fork.wait(10) == -signal.SIGKILL


def test_where_the_process_that_forks_was_killed_another_takes_its_place() -> None:
    running = Fork(sleep)
    nursery = psutil.Process(_Nursery.of_this_process()._process.pid)
    nursery.kill()
    nursery.wait(10)
    assert Fork(os._exit).wait(10) > 0
    running.kill()
    assert running.wait(10) == -signal.SIGKILL


DRIVER = """
import os
from sparkdl.forks import Fork, _Nursery
Fork(os._exit).wait()
print(_Nursery.of_this_process()._process.pid)
"""


def test_nothing_is_left_when_the_driver_has_ended() -> None:
    done = subprocess.run([sys.executable, "-c", DRIVER], capture_output=True, text=True, check=True)
    assert not done.stderr
    nursery = int(done.stdout)
    psutil.wait_procs([psutil.Process(nursery)] if psutil.pid_exists(nursery) else [], timeout=10)
    assert not psutil.pid_exists(nursery) or psutil.Process(nursery).status() == psutil.STATUS_ZOMBIE
