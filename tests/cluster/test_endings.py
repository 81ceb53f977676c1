"""How a run on a real cluster ends when it is ended from outside: interrupted, cancelled, or its driver killed."""

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

PROGRAM = Path(__file__).parent / "programs" / "endless.py"
SECONDS = 240.0


def events(log: Path, run: str) -> list[str]:
    """What has been reported of a run by now."""
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    return [line["what"] for line in lines if line["run"] == run]


def wait_for(log: Path, run: str, what: str, *, count: int = 1) -> None:
    deadline = time.monotonic() + SECONDS
    while events(log, run).count(what) < count:
        assert time.monotonic() < deadline, f"{run}: no {what}\n{log.read_text()[-4000:]}"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def log(standalone, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    log = tmp_path_factory.mktemp("endings") / "driver.log"
    submission = standalone.start(PROGRAM, log=log)
    yield log
    submission.kill()
    submission.wait()


def driver(standalone) -> psutil.Process:
    """The Python process of the driver, which spark-submit has started."""
    (found,) = [child for jvm in standalone.find("driver") for child in jvm.children() if "python" in child.name()]
    return found


def test_an_interrupted_driver_lets_its_ranks_come_to_an_end_in_order(standalone, log: Path) -> None:
    wait_for(log, "interrupted", "ready", count=2)
    driver(standalone).send_signal(signal.SIGINT)
    wait_for(log, "interrupted", "KeyboardInterrupt")
    assert events(log, "interrupted") == ["ready", "ready", "saved", "saved", "KeyboardInterrupt"]


def test_a_job_that_spark_was_told_to_cancel_is_cancelled_and_not_failed(log: Path) -> None:
    wait_for(log, "cancelled", "RunCancelledError")
    assert sorted(events(log, "cancelled")) == ["RunCancelledError", "ready", "ready", "saved", "saved"]


def test_nothing_of_a_killed_driver_is_left_anywhere(standalone, log: Path) -> None:
    wait_for(log, "killed", "ready", count=2)
    ranks = standalone.ranks()
    assert sorted(ranks) == [0, 1]
    everything = [process for role in ("driver", "executor", "python") for process in standalone.find(role)]
    for process in (driver(standalone), *standalone.find("driver")):
        process.kill()
    assert not psutil.wait_procs(list(ranks.values()), timeout=5)[1], "ranks were left"
    assert not psutil.wait_procs(everything, timeout=20)[1], "executors were left"
