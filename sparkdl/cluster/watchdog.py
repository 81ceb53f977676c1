"""Is a rank still alive and getting on? Answered on the driver, from what its heartbeats said."""

import time
from dataclasses import dataclass
from typing import Any

from sparkdl.cluster.heartbeat import HEARTBEAT_SECONDS
from sparkdl.errors import ConfigError

__all__ = ["MISSED_SECONDS", "PROCESS_DEATH", "Failure", "Timeouts", "Watchdog"]

PROCESS_DEATH, SILENT, STALLED, NOT_STARTED = "process death", "silent", "stalled", "not started"
MISSED_SECONDS = 4 * HEARTBEAT_SECONDS  # without a heartbeat for so long, a rank is the suspect when another one stalls


@dataclass(frozen=True)
class Timeouts:
    """How long a rank may be quiet before the driver gives it up. In seconds."""

    start_timeout: float = 180.0
    """From the start of the stage's tasks to a rank's first word, from there to its first step if it reports steps (it
    imports, it opens its data)."""
    silence_timeout: float = 20.0
    """Without any heartbeat: its process is stopped, its host is gone, or native code does not let go of Python. Three
    times as long may pass from the last rank's last word until the results have come home."""
    stall_timeout: float | None = None
    """Without a call of :meth:`Rank.beat`, though its heart beats: it is stuck in the user's code, or waits for a rank
    that is. Before the first call, ``start_timeout`` counts if it is longer. None: it may take as long as it likes."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and value <= 0:
                raise ConfigError(f"{name} is a number of seconds above 0, not {value:g}")
        if self.silence_timeout < MISSED_SECONDS:
            raise ConfigError(
                f"silence_timeout must be at least {MISSED_SECONDS:g} s, because a rank speaks only every"
                f" {HEARTBEAT_SECONDS:g} s; it is {self.silence_timeout:g}"
            )


@dataclass(frozen=True)
class Failure:
    """Why a rank failed: ``type`` is the name of an exception, or what the driver found out about a quiet one."""

    rank: int
    type: str
    reason: str
    text: str
    """Traceback or stack, if there is one, and the reason."""
    follows: bool = False
    """It is only the echo of another rank's failure."""
    step: int | None = None


@dataclass
class _Vitals:
    heard: float
    moved: float
    executor_ran: float
    beats: int = 0
    step: int | None = None
    waiting: bool = False
    stack: str = ""


class Watchdog:
    """What is known of the ranks that run.

    Its clock stands still while nobody asks for a verdict: when the driver itself was stopped, or busy, ranks are not
    blamed for it. It stands still while ranks are queued, too.
    """

    def __init__(self, num_ranks: int, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self._clock, self._looked = 0.0, time.monotonic()
        self._vitals: dict[int, _Vitals] = {}
        self._num_ranks, self._absent = num_ranks, set(range(num_ranks))
        self._last_change = 0.0

    @property
    def anyone_came(self) -> bool:
        """Whether a rank has said hello yet."""
        return len(self._absent) < self._num_ranks

    @property
    def anyone_open(self) -> bool:
        """Whether a rank that has said hello has not left yet."""
        return bool(self._vitals)

    def is_open(self, rank: int) -> bool:
        """Whether this rank has said hello and not left yet."""
        return rank in self._vitals

    def step(self, rank: int) -> int | None:
        """Where an open rank was when it was last heard, if it has said so."""
        return self._vitals[rank].step if rank in self._vitals else None

    def hear(self, rank: int, topic: str, body: dict[str, Any]) -> None:
        """Take note of what a rank said, or of its end."""
        if topic == "hello":
            self._absent.discard(rank)
            self._vitals[rank] = _Vitals(self._clock, self._clock, self._clock)
        elif topic in ("bye", "gone"):
            self._vitals.pop(rank, None)
            self._last_change = self._clock
        elif rank in self._vitals:
            vitals = self._vitals[rank]
            vitals.heard = self._clock
            if topic == "heartbeat":
                if body["beats"] != vitals.beats:
                    vitals.moved, vitals.stack = self._clock, ""
                vitals.beats, vitals.step, vitals.waiting = body["beats"], body["step"], body["waiting"]
                vitals.stack = body.get("stack", vitals.stack)
                if not body.get("executor_stopped"):
                    vitals.executor_ran = self._clock

    def verdict(self, *, queued: bool = False) -> Failure | None:
        """The first rank to give up, if there is one. To be asked every second or more often.

        ``queued``: no rank runs yet, because others hold the slots.
        """
        now = time.monotonic()
        self._clock += 0.0 if queued else min(now - self._looked, HEARTBEAT_SECONDS)
        self._looked = now
        return self._not_started() or self._silent() or self._stalled()

    def _not_started(self) -> Failure | None:
        limit = self._timeouts.start_timeout
        if self._absent and self._clock > limit:
            missing = ", ".join(map(str, sorted(self._absent)))
            text = f"not a word from rank {missing} within {limit:g} s: no answer from its executor"
            return Failure(min(self._absent), NOT_STARTED, text, text)
        limit = min(limit, 3 * self._timeouts.silence_timeout)
        if not self._absent and not self._vitals and self._clock - self._last_change > limit:
            text = f"all ranks are done, and their results did not come home within {limit:g} s"
            return Failure(0, SILENT, text, text)
        return None

    def _silent(self) -> Failure | None:
        limit = self._timeouts.silence_timeout
        for rank, vitals in sorted(self._vitals.items(), key=lambda item: item[1].heard):
            if self._clock - vitals.heard > limit:
                text = (
                    f"no heartbeat for {limit:g} s: its process is stopped or starved, its host is gone, or native code"
                    " keeps Python's lock"
                )
            elif self._clock - vitals.executor_ran > limit and vitals.heard - vitals.executor_ran > MISSED_SECONDS:
                text = f"its executor has been stopped for {limit:g} s: nothing would come back from it"
            else:
                continue
            return Failure(rank, SILENT, text, text, step=vitals.step)
        return None

    def _stalled(self) -> Failure | None:
        limit = self._timeouts.stall_timeout
        if limit is None or any(self._clock - vitals.heard > MISSED_SECONDS for vitals in self._vitals.values()):
            return None  # at most, the others wait for a rank that is about to be called silent
        before_first_step = max(limit, self._timeouts.start_timeout)
        idle = {rank: self._clock - vitals.moved for rank, vitals in self._vitals.items()}
        if all(idle[rank] <= (limit if vitals.beats else before_first_step) for rank, vitals in self._vitals.items()):
            return None
        still = {rank: vitals for rank, vitals in self._vitals.items() if idle[rank] > limit / 2}
        if len(still) < len(self._vitals) and all(vitals.waiting for vitals in still.values()):
            return None  # they wait for a rank that gets on
        rank, vitals = min(still.items(), key=lambda item: (item[1].waiting, item[1].step or 0, item[1].moved))
        where = "before its first step" if vitals.step is None else f"at step {vitals.step}"
        what = "waits for other ranks" if vitals.waiting else "is stuck"
        text = f"it {what} {where}, without progress for {idle[rank]:.0f} s"
        stack = f"Stack (most recent call last):\n{vitals.stack}" if vitals.stack else ""
        return Failure(rank, STALLED, text, stack + text, step=vitals.step)
