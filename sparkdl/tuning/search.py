"""Runs trials on slots: as many at a time as there are slots for, and a new one when one ends. Runs on the driver.

Each trial runs in a thread of its own, which tells the search's thread how it has ended. All decisions are taken under
one lock.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import uuid4

from pyspark import InheritableThread
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from sparkdl.cluster import count_ranks
from sparkdl.cluster.interrupts import plain_interrupts
from sparkdl.errors import (
    ConfigError,
    NotEnoughSlotsError,
    RankError,
    RunCancelledError,
    SparkdlError,
    TrainingError,
)
from sparkdl.sessions import JVM_ERRORS, cancel_tagged, is_gone, is_remote, tagged_jobs
from sparkdl.settings import Settings
from sparkdl.settings.strategies import AsynchronousOptions
from sparkdl.training.attempts import RunStopped, told
from sparkdl.tuning.stopping import TrialPlan, Turn
from sparkdl.tuning.study import TrialStudy
from sparkdl.tuning.trial_records import TrialRecord, TrialState
from sparkdl.tuning.trial_run import TrialRunner

__all__ = ["Search"]

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.25  # between two checks for free slots, while no trial ends
ORDERLY_SECONDS = 10.0  # how long trials may take to end when the search is interrupted
OF_A_KIND = 3
"""The search ends after this number of trials with the same kind of error, because further trials would fail, too."""


class _Ended(NamedTuple):
    """How a trial has ended its turn: with an error, or None after all epochs of the turn."""

    record: TrialRecord
    error: BaseException | None


@dataclass
class _Running:
    """A trial that has slots."""

    record: TrialRecord
    width: int
    stop: threading.Event
    thread: threading.Thread
    started: float = field(default_factory=time.monotonic)


class Search:
    """Runs the trials of one search, beginning with those that already have records."""

    def __init__(
        self,
        settings: Settings,
        records: list[TrialRecord],
        *,
        study: TrialStudy,
        plan: TrialPlan,
        runner: TrialRunner,
        spark: SparkSession,
        folder: str,
        spent: float,
        on_change: Callable[[TrialRecord | None], None],
    ) -> None:
        """``on_change`` is called in the search's thread: with each trial that is over, and regularly with None.

        ``spent`` is the number of seconds that earlier drivers have searched.
        """
        self.settings, self.records = settings, records
        self._study, self._plan, self._runner = study, plan, runner
        self._spark, self._folder, self._on_change = spark, folder, on_change
        self._running: dict[int, _Running] = {}
        self._again = [record for record in records if record.state == "running"]
        """Trials to start again: an earlier driver has begun them, or they got no slots."""
        self._events: queue.SimpleQueue[_Ended] = queue.SimpleQueue()
        self._lock = threading.RLock()
        self._reached = False
        self._idle_since = time.monotonic()
        self._begun = self._idle_since - spent
        self._tag = f"sparkdl-search-{uuid4().hex[:16]}"

    @property
    def running(self) -> Sequence[TrialRecord]:
        """The trials that have slots now."""
        return [each.record for each in self._running.values()]

    @property
    def seconds(self) -> float:
        """The seconds that all drivers of the search have spent on it."""
        return time.monotonic() - self._begun

    def run(self) -> None:
        """Run trials until none is left. An interrupt, or an error of the search itself, ends running trials.

        Raises the error of a trial when it is the third of its kind, :class:`~sparkdl.errors.NotEnoughSlotsError` if
        the cluster has too few slots for too long, and :class:`~sparkdl.errors.RunCancelledError`.
        """
        with plain_interrupts():
            try:
                while self._start_what_fits() or self._running:
                    self._take_in()
                    self._on_change(None)
            except BaseException:
                self._end_all()
                raise
        for record in self.records:
            if not record.is_over:  # paused, or without slots when the time was over
                self._settle(record, "stopped")

    def _start_what_fits(self) -> bool:
        """Start trials while there are slots for them; returns whether more trials wait for slots."""
        while True:
            with self._lock:
                turn = self._turn_to_go_on()
            if turn is None and not self._may_begin():
                return False
            if not self._has_room(self._width(turn.record if turn else None)):
                return True
            record = turn.record if turn else TrialRecord(len(self.records), {})
            if turn is None:
                with self._lock:
                    record.values = self._study.ask(self.records, record.number)
                    self._plan.begin(record)
                    self.records.append(record)
            else:
                with self._lock:
                    if turn.source is not None:
                        self._plan.take_over(record, turn.source)
                    record.until, record.state = turn.until, "running"
                self._again = [each for each in self._again if each is not record]
            try:
                width = self._width(record)
            except ConfigError as error:
                self._fail(record, error)
                continue
            if not self._has_room(width):
                self._again.append(record)
                return True
            self._start(record, width)

    def _turn_to_go_on(self) -> Turn | None:
        """The trial to continue before new ones begin: one without its slots, or one that the plan promotes."""
        if self._is_late():
            return None
        return Turn(self._again[0], self._again[0].until) if self._again else self._plan.promote(self.records)

    def _may_begin(self) -> bool:
        return len(self.records) < self.settings.tune.budget and not self._is_late()

    def _is_late(self) -> bool:
        """Whether the time is over or the target reached, so that no trial may begin or continue."""
        seconds = self.settings.tune.seconds
        return self._reached or (seconds is not None and self.seconds > seconds)

    def _width(self, record: TrialRecord | None) -> int:
        """The number of slots of a trial. Raises :class:`ConfigError` if its values do not fit together."""
        settings = self._runner.settings_of(record) if record else self.settings
        ranks, slots = settings.cluster.ranks, self._slots()
        asynchronous = isinstance(settings.train.strategy, AsynchronousOptions)
        beside = settings.cluster.servers if asynchronous else 0
        return max(ranks.min, min(ranks.max, (slots or ranks.max) - beside)) + beside

    def _has_room(self, width: int) -> bool:
        at_a_time, slots = self.settings.tune.at_a_time, self._slots()
        if slots is None:  # Spark does not tell the number of slots
            return len(self._running) < (at_a_time or 1)
        taken = sum(each.width for each in self._running.values())
        return taken + width <= slots and (at_a_time is None or len(self._running) < at_a_time)

    def _slots(self) -> int | None:
        """The number of slots now, which changes with the executors; None if Spark does not tell it."""
        return count_ranks(self._spark, self.settings.cluster.resources)

    def _start(self, record: TrialRecord, width: int) -> None:
        record.save(self._folder)
        stop = threading.Event()
        make = threading.Thread if is_remote(self._spark) else InheritableThread
        thread = make(target=self._run_trial, args=(record, stop), daemon=True)
        self._running[record.number] = _Running(record, width, stop, thread)
        thread.start()

    def _run_trial(self, record: TrialRecord, stop: threading.Event) -> None:
        """Run the trial's turn. Called in the trial's own thread."""

        def learn(history: list[dict[str, float]]) -> None:
            with self._lock:
                record.history = history
                self._look_at_target(record)
                if self._plan.ends_early(record, self.records):
                    stop.set()

        error: BaseException | None = None
        try:
            with tagged_jobs(self._spark, self._tag, f"trial {record.number}"):
                self._runner.run(record, stop=stop, on_epoch=learn)
        except BaseException as raised:  # the search's thread raises it unless it is the trial's own failure
            error = raised
        self._events.put(_Ended(record, error))

    def _take_in(self) -> None:
        """Handle the trials that have ended; wait ``LOOK_SECONDS`` for one if there is none."""
        try:
            self._ended(self._events.get(timeout=LOOK_SECONDS))
            while not self._events.empty():
                self._ended(self._events.get())
        except queue.Empty:
            pass
        if self._running:
            self._idle_since = time.monotonic()
        elif time.monotonic() - self._idle_since > self.settings.cluster.slot_timeout:
            raise NotEnoughSlotsError(
                f"trials take {self._width(None)} slots each, but the cluster has had {self._slots()} for"
                f" {self.settings.cluster.slot_timeout:g} s; continue the search with tune.resume when it has more"
            )

    def _ended(self, event: _Ended) -> None:
        record, error = event
        running = self._running.pop(record.number)
        record.seconds += time.monotonic() - running.started
        with self._lock:
            if error is None:
                self._settle(record, "finished" if self._plan.is_whole(record) else "paused")
            elif isinstance(error, RunStopped):
                self._settle(record, "stopped")
            elif isinstance(error, NotEnoughSlotsError):
                self._again.append(record)
            elif isinstance(error, SparkdlError) and not isinstance(error, RunCancelledError):
                if is_gone(self._spark):
                    raise error
                self._fail(record, error)
            else:
                raise error

    def _look_at_target(self, record: TrialRecord) -> None:
        """Stop all trials once one has reached ``train.target``."""
        target = self.settings.train.target
        if not self._reached and target is not None and any(map(target.reached, record.history)):
            self._reached = True
            for running in self._running.values():
                running.stop.set()

    def _settle(self, record: TrialRecord, state: TrialState) -> None:
        """Set a trial's state after its turn, and save it before anyone else is told."""
        record.state = state
        record.save(self._folder)
        if record.is_over:
            self._on_change(record)

    def _fail(self, record: TrialRecord, error: SparkdlError) -> None:
        """Mark a trial as failed. Raises its error if it is the third of its kind."""
        kind = error.exception_type if isinstance(error, RankError) else None
        record.kind, record.reason = kind or type(error).__name__, str(error)
        log.warning("trial %d failed: %s", record.number, _last_line(error))
        self._settle(record, "failed")
        alike = [other for other in self.records if other.state == "failed" and other.kind == record.kind]
        # A loss that is not finite may mean that a learning rate is too large: a result of the search, not an error.
        if len(alike) >= OF_A_KIND and not isinstance(error, TrainingError):
            numbers = ", ".join(str(other.number) for other in alike)
            more = f"the search has ended, since {len(alike)} trials failed in this way: {numbers}"
            raise told(error, more) if isinstance(error, RankError) else type(error)(f"{error}\n\n{more}")

    def _end_all(self) -> None:
        """Stop running trials: ask them to write a checkpoint and end, then cancel the jobs of those that have not."""
        for running in self._running.values():
            running.stop.set()
        deadline = time.monotonic() + ORDERLY_SECONDS
        for running in self._running.values():
            running.thread.join(max(0.0, deadline - time.monotonic()))
        if any(running.thread.is_alive() for running in self._running.values()):
            with suppress(*JVM_ERRORS, PySparkException, OSError):  # if Spark has ended, so have its jobs
                cancel_tagged(self._spark, self._tag)
            for running in self._running.values():
                running.thread.join(ORDERLY_SECONDS)


def _last_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    reason = error.reason if isinstance(error, RankError) and error.reason else None
    return reason or (lines[0] if lines else type(error).__name__)
