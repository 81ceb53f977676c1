"""What ends a driver from outside, Ctrl-C and SIGTERM, and how it comes to an end in order. Runs on the driver.

Where the environment variable ``SPARKDL_INTERRUPTS`` is 0, all handlers stay as they are.
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
"""Where handlers that cancel jobs come from: Spark 3, Spark 4 and this file."""
CANCEL_SECONDS = 5.0  # how long Spark may take to cancel jobs


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """While this lasts, SIGTERM raises SystemExit in the main thread; elsewhere, and under another handler, nothing."""
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


@contextmanager
def held_interrupts() -> Iterator[None]:
    """Let Ctrl-C wait for the end of this block. A JVM whose start is interrupted never ends."""
    with noted_signals(signal.SIGINT) as heard:
        yield
    if heard.is_set():
        raise KeyboardInterrupt


@contextmanager
def noted_signals(*numbers: signal.Signals) -> Iterator[threading.Event]:
    """An event that these signals set while this lasts, and do nothing else, where Python lets handlers be set."""
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

    Spark's asks its JVM in the middle of another question, so that the answers are mixed up and an error of that is all
    that is seen. This one asks in a thread of its own.
    """

    def ask() -> None:
        with suppress(Exception):  # the JVM is gone, and its jobs with it
            spark.sparkContext.cancelAllJobs()

    def cancel(number: int, frame: object) -> None:
        asking = threading.Thread(target=ask, name="sparkdl-interrupt", daemon=True)
        asking.start()
        asking.join(CANCEL_SECONDS)
        raise KeyboardInterrupt

    if _spark_hears_interrupts():
        signal.signal(signal.SIGINT, cancel)


def stop_spark(spark: SparkSession) -> None:
    """Stop Spark, and the handler of Ctrl-C with it: without the context that it was for, Spark's raises an error."""
    spark.stop()
    if _spark_hears_interrupts():
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _spark_hears_interrupts() -> bool:
    handler = signal.getsignal(signal.SIGINT)
    return _may_handle() and getattr(handler, "__module__", None) in HANDLERS


def _may_handle() -> bool:
    """Python lets only the main thread set handlers."""
    return os.environ.get(INTERRUPTS) != "0" and threading.current_thread() is threading.main_thread()
