"""A rank in a fork of Spark's Python worker."""

import os
import signal
import subprocess
import sys
from functools import partial

import pytest

from sparkdl.cluster.own_process import can_fork, run_in_fork
from sparkdl.cluster.rank import RankResult


def test_what_a_fork_returns_or_raises_is_returned_or_raised_here_and_nothing_else_of_it_stays() -> None:
    seen: list[int] = []

    def work() -> RankResult:
        seen.append(os.getpid())
        return RankResult(3, str(os.getpid()).encode() + bytes(1 << 20))

    outcome = run_in_fork(work)
    assert outcome.rank == 3 and not (outcome.result or b"").startswith(str(os.getpid()).encode()) and not seen
    with pytest.raises(ConnectionError, match="no driver"):
        run_in_fork(partial(_raise, ConnectionError("no driver")))


def test_a_worker_ends_with_its_fork_and_a_fork_with_its_worker() -> None:
    program = """
import os, signal, sys, time
from sparkdl.cluster.own_process import run_in_fork

def work():
    print(os.getpid(), flush=True)
    if sys.argv[1] == "fork":
        os.kill(os.getpid(), signal.SIGKILL)
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)

run_in_fork(work)
"""
    for who, code in {"fork": 1, "worker": -signal.SIGKILL}.items():
        done = subprocess.run([sys.executable, "-c", program, who], capture_output=True, text=True, timeout=30)
        assert done.returncode == code  # and nobody held the pipe
        assert done.stdout.strip().isdigit()


def test_a_process_with_threads_that_are_not_pythons_is_not_forked() -> None:
    program = """
import threading, torch
from sparkdl.cluster.own_process import can_fork
threading.Thread(target=threading.Event().wait, daemon=True).start()
before = can_fork()
torch.set_num_threads(2)
torch.rand(1000, 1000) @ torch.rand(1000, 1000) + torch.rand(1000, 1000)
print(before, can_fork())
"""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env=environment, check=True
    )
    assert done.stdout.split()[1] == "False"
    assert isinstance(can_fork(), bool)


def _raise(error: Exception) -> RankResult:
    raise error
