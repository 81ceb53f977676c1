"""Measures how a rank spends its time and how much it sends, as sums and as a trace. Runs on ranks.

The trace is that of a profiler: "X" events of Chrome's trace event format, with microseconds since 1970.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, TypeVar

import torch

from sparkdl.collectives import Communicator

__all__ = ["RankTimes", "Stopwatch"]

T = TypeVar("T")
TRACED_STEPS = 20
"""The number of first steps, and of steps before a failure, that are traced."""
SHORTEST = 2e-5  # seconds; shorter events would be invisible in a trace


class RankTimes(NamedTuple):
    """How a rank spent the steps of an epoch: seconds, and what it sent."""

    loading: float
    """Waiting for rows."""
    computing: float
    """Forward passes, back-propagation, optimizer steps, and all time that is not counted elsewhere."""
    exchanging: float
    """Exchanges that did not overlap with computing: the time of the rank that waited least."""
    waiting: float
    """The additional time of this rank for the same exchanges, in which it waited for slower ranks."""
    saving: float
    """Copying the content of a checkpoint, and waiting until the one before is written."""
    steps: float
    bytes_sent: float
    """Bytes of the tensors that it gave to exchanges."""

    @property
    def seconds(self) -> float:
        """The sum of all times."""
        return self.loading + self.computing + self.exchanging + self.waiting + self.saving


class Stopwatch:
    """Measures one rank's steps. Costs a few microseconds a step."""

    def __init__(self) -> None:
        self._seconds = {"load": 0.0, "save": 0.0}
        self._steps = 0
        self._step_started = time.perf_counter()
        self._events: list[dict[str, Any]] = []
        """Events of the step in progress."""
        self._first: list[dict[str, Any]] = []
        self._left = TRACED_STEPS
        self._last: deque[list[dict[str, Any]]] = deque(maxlen=TRACED_STEPS)
        self._epoch = time.time() - time.perf_counter()  # the offset between both clocks

    def start_epoch(self, communicator: Communicator) -> None:
        """Begin to measure an epoch, or the rest of one, in which ranks exchange by this communicator."""
        self._communicator = communicator
        communicator.on_exchange = self._exchanged
        self._seconds = dict.fromkeys(self._seconds, 0.0)
        self._steps = 0
        self._waited, self._sent = communicator.seconds_waited, communicator.bytes_sent
        self._started = self._step_started = time.perf_counter()

    def loading(self, batches: Iterable[T]) -> Iterator[T]:
        """The same batches; measures the waiting time for them."""
        iterator = iter(batches)
        while True:
            with self.phase("load"):
                try:
                    batch = next(iterator)
                except StopIteration:
                    return
            yield batch

    @contextmanager
    def phase(self, name: Literal["load", "save"]) -> Iterator[None]:
        """Measure the block as loading or saving; exchanges in it are counted as such."""
        started, waited = time.perf_counter(), self._communicator.seconds_waited
        try:
            yield
        finally:
            seconds = time.perf_counter() - started
            self._seconds[name] += seconds - (self._communicator.seconds_waited - waited)
            self._trace(name, started, seconds)

    def finish_step(self, step: int) -> list[dict[str, Any]]:
        """Record the end of a step. After the traced first steps, returns their trace, once."""
        self._steps += 1
        now = time.perf_counter()
        self._trace(f"step {step}", self._step_started, now - self._step_started)
        self._step_started = now
        self._last.append(self._events)
        self._left -= 1
        if self._left >= 0:
            self._first += self._events
        self._events = []
        return self._first if self._left == 0 else []

    def only_steps(self) -> list[dict[str, Any]]:
        """The trace of a run that ended before all first steps were traced; else empty."""
        return self._first if self._left > 0 else []

    def last_steps(self) -> list[dict[str, Any]]:
        """The trace of the last steps and of the one in progress, for a failure."""
        self._trace("interrupted", self._step_started, time.perf_counter() - self._step_started)
        return [event for events in (*self._last, self._events) for event in events]

    def end_epoch(self) -> list[RankTimes]:
        """How each rank has spent the epoch. All ranks call it together."""
        communicator = self._communicator
        waited, sent = communicator.seconds_waited - self._waited, communicator.bytes_sent - self._sent
        load, save = self._seconds["load"], self._seconds["save"]
        computing = time.perf_counter() - self._started - load - save - waited
        own = torch.tensor([load, computing, waited, save, self._steps, sent], dtype=torch.float64)
        rows = [each.tolist() for each in communicator.all_gather(own)]
        least = min(row[2] for row in rows)
        return [
            RankTimes(loading, computing, least, waited - least, saving, steps, sent)
            for loading, computing, waited, saving, steps, sent in rows
        ]

    def _exchanged(self, started: float, seconds: float) -> None:
        self._trace("exchange", started, seconds)

    def _trace(self, name: str, started: float, seconds: float) -> None:
        if seconds >= SHORTEST:
            self._events.append({"name": name, "ts": (self._epoch + started) * 1e6, "dur": seconds * 1e6})
