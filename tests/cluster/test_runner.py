"""HorovodRunner behaves as Databricks documents it."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

from sparkdl import HorovodRunner
from sparkdl.cluster import Timeouts
from sparkdl.errors import ConfigError, NotEnoughSlotsError, RankError

ROOT = Path(__file__).parents[2]


def main(scale: float) -> tuple[int, float]:
    import horovod.torch as hvd
    import torch

    from sparkdl.horovod import log_to_driver

    hvd.init()
    print("printed by a rank")
    log_to_driver(f"logged by rank {hvd.rank()}")
    return hvd.rank(), hvd.allreduce(torch.tensor([scale]), op=hvd.Sum).item()


def test_positive_np_runs_a_barrier_stage_and_returns_rank_0s_result(spark: SparkSession, capfd) -> None:
    assert HorovodRunner(np=2).run(main, scale=1.5) == (0, 3.0)
    output = capfd.readouterr().out
    assert "logged by rank 0" in output
    assert "logged by rank 1" in output
    assert "printed by a rank" not in output


@pytest.mark.parametrize("np", [2, -2])
def test_a_function_may_keep_pythons_lock_for_long(
    spark: SparkSession, np: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, _, stall = Timeouts.__init__.__defaults__ or ()
    monkeypatch.setattr(Timeouts.__init__, "__defaults__", (start, 4.0, stall))  # a silent rank is given up after 4 s

    def keep_the_lock() -> int:
        ctypes.PyDLL(None).sleep(8)
        return 1

    assert HorovodRunner(np=np).run(keep_the_lock) == 1


def test_negative_np_runs_processes_on_the_driver_and_shows_what_they_print(capfd) -> None:
    assert HorovodRunner(np=-2).run(main, scale=1.5) == (0, 3.0)
    output = capfd.readouterr().out
    assert "[rank 0] printed by a rank" in output
    assert "[rank 1] printed by a rank" in output


def test_np_0_takes_every_slot(spark: SparkSession, capfd) -> None:
    assert HorovodRunner(np=0, driver_log_verbosity="all").run(main, scale=1.0) == (0, 2.0)
    assert "[rank 1] printed by a rank" in capfd.readouterr().out


def test_more_ranks_than_slots_is_an_error(spark: SparkSession) -> None:
    with pytest.raises(NotEnoughSlotsError, match=r"4 ranks.*2 slots"):
        HorovodRunner(np=4).run(main, scale=1.0)


def test_a_wrong_verbosity_lists_the_right_ones() -> None:
    with pytest.raises(ConfigError, match="all, log_callback_only"):
        HorovodRunner(np=2, driver_log_verbosity="everything")  # type: ignore[arg-type]


def test_a_failing_local_rank_arrives_with_its_traceback() -> None:
    def fail() -> None:
        raise ValueError("no data")

    with pytest.raises(RankError, match=r"Traceback[\s\S]*no data") as caught:
        HorovodRunner(np=-2).run(fail)
    assert caught.value.exception_type == "ValueError"


def test_a_killed_local_rank_is_an_error_and_not_a_hang() -> None:
    def die() -> None:
        import horovod.torch as hvd

        hvd.init()
        if hvd.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        hvd.barrier()

    with pytest.raises(RankError, match="ended with code -9") as caught:
        HorovodRunner(np=-2).run(die)
    assert caught.value.rank == 1


PROGRAM = """
import sys, time
from sparkdl import HorovodRunner

def wait():
    import os, time
    print("rank is process", os.getpid())
    time.sleep(120)

HorovodRunner(np=int(sys.argv[1]), driver_log_verbosity="all").run(wait)
"""


@pytest.mark.parametrize(("np", "end"), [(-2, signal.SIGINT), (-2, signal.SIGKILL), (2, signal.SIGINT)])
def test_when_the_driver_is_interrupted_or_killed_its_ranks_end(np: int, end: signal.Signals) -> None:
    command = [sys.executable, "-c", PROGRAM, str(np)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as driver:
        lines = [driver.stdout.readline() for _ in range(2)]  # type: ignore[union-attr]
        ranks = [int(line.split()[-1]) for line in lines]
        started = time.monotonic()
        driver.send_signal(end)
        driver.communicate(timeout=30)
    while time.monotonic() - started < 15 and any(map(psutil.pid_exists, ranks)):
        time.sleep(0.1)
    assert not any(map(psutil.pid_exists, ranks))
