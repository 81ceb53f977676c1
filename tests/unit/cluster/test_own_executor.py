"""A rank and the JVM above it, played by a process that sleeps."""

import signal
import sys
from collections.abc import Iterator

import psutil
import pytest

from sparkdl.cluster.own_executor import end_stopped, is_stopped, own_executor


@pytest.fixture
def executor() -> Iterator[psutil.Popen]:
    with psutil.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        yield process
        if process.poll() is None:
            process.kill()


def stop(process: psutil.Popen) -> None:
    process.send_signal(signal.SIGSTOP)
    while not is_stopped([process]):
        pass


def test_without_spark_there_is_none() -> None:
    assert own_executor() == ()
    assert not is_stopped(())


def test_one_that_runs_is_left_alone(executor: psutil.Popen) -> None:
    end_stopped([executor])
    assert executor.poll() is None


def test_one_that_is_stopped_is_ended(executor: psutil.Popen) -> None:
    stop(executor)
    end_stopped([executor])
    assert executor.wait(5) == -signal.SIGKILL


def test_one_that_goes_on_is_not_stopped_any_more(executor: psutil.Popen) -> None:
    stop(executor)
    executor.send_signal(signal.SIGCONT)
    assert not is_stopped([executor])


def test_one_that_is_gone_is_no_reason_to_fail(executor: psutil.Popen) -> None:
    executor.kill()
    executor.wait()
    assert not is_stopped([executor])
    end_stopped([executor])


def test_of_several_processes_those_that_run_are_left_alone(executor: psutil.Popen) -> None:
    with psutil.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as other:
        stop(executor)
        assert is_stopped([other, executor])
        end_stopped([other, executor])
        assert executor.wait(5) == -signal.SIGKILL
        assert other.poll() is None
        other.kill()
