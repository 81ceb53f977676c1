"""Ctrl-C once Spark has been stopped."""

import signal
import subprocess
import sys

PROGRAM = """
import signal
from sparkdl.cluster import get_session, stop_spark

spark = get_session()
assert signal.getsignal(signal.SIGINT).__module__ == "pyspark.context"
stop_spark(spark)
signal.raise_signal(signal.SIGINT)
"""


def test_an_interrupt_after_spark_was_stopped_is_a_plain_one() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == -signal.SIGINT, done.stderr
    assert "AttributeError" not in done.stderr
