"""Handlers of signals: while something lasts, and only where they are wanted."""

import os
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from sparkdl.cluster.interrupts import exit_on_sigterm, held_interrupts, noted_signals

SCOPED = [(exit_on_sigterm, signal.SIGTERM), (held_interrupts, signal.SIGINT)]


@pytest.mark.parametrize(("scope", "number"), SCOPED)
def test_a_handler_stays_no_longer_than_what_needs_it(
    scope: Callable[[], AbstractContextManager[None]], number: signal.Signals
) -> None:
    before = signal.getsignal(number)
    with scope():
        assert signal.getsignal(number) != before
    assert signal.getsignal(number) == before


@pytest.mark.parametrize(("scope", "number"), SCOPED)
def test_no_handler_is_touched_where_that_is_turned_off(
    scope: Callable[[], AbstractContextManager[None]], number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARKDL_INTERRUPTS", "0")
    before = signal.getsignal(number)
    with scope():
        assert signal.getsignal(number) == before


def test_signals_are_noted_and_end_nothing() -> None:
    with noted_signals(signal.SIGINT, signal.SIGTERM) as heard:
        assert not heard.is_set()
        os.kill(os.getpid(), signal.SIGTERM)
        assert heard.wait(5)
