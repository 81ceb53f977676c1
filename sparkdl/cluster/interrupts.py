"""Handles Ctrl-C and SIGTERM, so that the driver ends in order. Runs on the driver.

If the environment variable ``SPARKDL_INTERRUPTS`` is 0, no signal handler is changed.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pyspark.sql import SparkSession

__all__ = [
    "cancel_on_interrupt",
    "exit_on_sigterm",
    "held_interrupts",
    "noted_signals",
    "plain_interrupts",
    "stop_spark",
]

INTERRUPTS = "SPARKDL_INTERRUPTS"
HANDLERS = ("pyspark.context", "pyspark.core.context", __name__)
"""The modules whose signal handlers cancel jobs: those of Spark 3, of Spark 4, and this one."""
CANCEL_SECONDS = 5.0  # how long Spark may take to cancel jobs


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Within this context, SIGTERM raises SystemExit. No effect in other threads, or if it has a handler."""
    if not _may_handle() or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def plain_interrupts() -> Iterator[None]:
    """Within this context, Ctrl-C only raises KeyboardInterrupt.

    Spark's own handler first cancels all jobs, so that ranks would be killed before they could end in order.
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


@contextmanager
def held_interrupts() -> Iterator[None]:
    """Within this context, Ctrl-C is delayed until its end. A JVM whose start is interrupted never ends."""
    with noted_signals(signal.SIGINT) as heard:
        yield
    if heard.is_set():
        raise KeyboardInterrupt


@contextmanager
def noted_signals(*numbers: signal.Signals) -> Iterator[threading.Event]:
    """Within this context, these signals only set the event. No effect outside the main thread."""
    heard = threading.Event()

    def note(number: int, frame: object) -> None:
        heard.set()

    before = {number: signal.signal(number, note) for number in numbers} if _may_handle() else {}
    try:
        yield heard
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is note:
                signal.signal(number, handler)


def cancel_on_interrupt(spark: SparkSession) -> None:
    """Let Ctrl-C cancel all jobs, as Spark's own handler does, and raise KeyboardInterrupt.

    Spark's handler may send its request to the JVM in the middle of another one. Then the answers are mixed up, and the
    user only sees the resulting error. This handler sends its request from a separate thread.
    """

    def ask() -> None:
        with suppress(Exception):  # if the JVM is gone, so are its jobs
            spark.sparkContext.cancelAllJobs()

    def cancel(number: int, frame: object) -> None:
        asking = threading.Thread(target=ask, name="sparkdl-interrupt", daemon=True)
        asking.start()
        asking.join(CANCEL_SECONDS)
        raise KeyboardInterrupt

    if _spark_hears_interrupts():
        signal.signal(signal.SIGINT, cancel)


def stop_spark(spark: SparkSession) -> None:
    """Stop Spark, and remove its handler of Ctrl-C, which would raise an error without a SparkContext."""
    spark.stop()
    if _spark_hears_interrupts():
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _spark_hears_interrupts() -> bool:
    handler = signal.getsignal(signal.SIGINT)
    return _may_handle() and getattr(handler, "__module__", None) in HANDLERS


def _may_handle() -> bool:
    """Whether this thread may set signal handlers: Python allows it only in the main thread."""
    return os.environ.get(INTERRUPTS) != "0" and threading.current_thread() is threading.main_thread()
