"""A session that nobody has asked for anything yet, and Ctrl-C once Spark has been stopped."""

import re
import signal
import subprocess
import sys

import pytest

from ..conftest import OF_JAVA

PROGRAM = """
import contextlib, signal, time
import psutil
from sparkdl.cluster import get_session, stop_spark

def loading():
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "sparkdl.daemon" in process.cmdline():
                return True
    return False

for moment in (0, 0.5, 1):
    spark = get_session()
    assert spark.conf.get("spark.sql.shuffle.partitions") == "8", "four for each of two slots"
    assert signal.getsignal(signal.SIGINT).__module__ == "sparkdl.cluster.interrupts"
    until = time.monotonic() + 60
    while not (found := loading()) and time.monotonic() < until:
        time.sleep(0.01)
    print(found)
    time.sleep(moment)
    stop_spark(spark)
signal.raise_signal(signal.SIGINT)
"""


@pytest.fixture(scope="module")
def done() -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False)


def test_the_process_that_workers_are_forked_from_starts_with_the_session(done) -> None:
    assert done.stdout == "True\n" * 3


def test_a_session_that_is_stopped_while_it_loads_says_nothing(done) -> None:
    assert not re.search("ERROR|WARN|Exception|Py4J", done.stderr.replace(OF_JAVA, "")), done.stderr


def test_an_interrupt_after_spark_was_stopped_is_a_plain_one(done) -> None:
    assert done.returncode == -signal.SIGINT, done.stderr
    assert "AttributeError" not in done.stderr
