"""What ends a driver from outside, Ctrl-C and SIGTERM, and how it comes to an end in order. Runs on the driver."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

__all__ = ["exit_on_sigterm", "plain_interrupts", "stop_spark"]


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """While this lasts, SIGTERM raises SystemExit in the main thread; elsewhere, and under another handler, nothing."""
    if not _in_main_thread() or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def plain_interrupts() -> Iterator[None]:
    """Let Ctrl-C do no more than raise KeyboardInterrupt.

    Spark's own handler cancels all jobs first, and the ranks would be gone before they could come to an end in order.
    """
    handler = signal.getsignal(signal.SIGINT)
    if not _spark_hears_interrupts():
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def stop_spark(spark: SparkSession) -> None:
    """Stop Spark, and its handler of Ctrl-C with it: without the context that it was for, it raises AttributeError."""
    spark.stop()
    if _spark_hears_interrupts():
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _spark_hears_interrupts() -> bool:
    handler = signal.getsignal(signal.SIGINT)
    return _in_main_thread() and getattr(handler, "__module__", None) == "pyspark.context"


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
