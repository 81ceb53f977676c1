"""SIGTERM, the polite way of ending a driver, ends it like Ctrl-C does: in order. Runs on the driver."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["exit_on_sigterm"]


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """While this lasts, SIGTERM raises SystemExit in the main thread; elsewhere, and under another handler, nothing."""
    mine = threading.current_thread() is threading.main_thread()
    if not mine or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
