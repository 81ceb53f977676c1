"""Detects ranks that are silent or make no progress, from their heartbeats. Runs on the driver.

Ranks whose process or executor died are detected by their closed connections, in ``channel.py``.
"""

import time
from dataclasses import dataclass
from typing import Any

from sparkdl.cluster.heartbeat import HEARTBEAT_SECONDS
from sparkdl.errors import ConfigError

__all__ = ["MISSED_SECONDS", "PROCESS_DEATH", "Failure", "Timeouts", "Watchdog"]

PROCESS_DEATH, SILENT, STALLED, NOT_STARTED = "process death", "silent", "stalled", "not started"
MISSED_SECONDS = 4 * HEARTBEAT_SECONDS  # a rank without heartbeats for so long is the likely reason if another stalls


@dataclass(frozen=True)
class Timeouts:
    """How long a rank may be silent or without progress before it counts as failed. In seconds."""

    start_timeout: float = 180.0
    """From the start of the stage's tasks to a rank's first message, and from there to its first step, if it reports
    steps: it imports packages and opens its data meanwhile."""
    silence_timeout: float = 20.0
    """Without any heartbeat: its process is stopped, its host is gone, or native code holds Python's global lock. Three
    times as long may pass between the last rank's last message and the arrival of the results."""
    stall_timeout: float | None = None
    """Without a call of :meth:`Rank.beat`, although heartbeats arrive: the rank is stuck in the user's code, or waits
    for a rank that is. Before the first call, ``start_timeout`` applies if it is longer. None: no limit."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and value <= 0:
                raise ConfigError(f"{name} must be a number of seconds above 0, not {value:g}")
        if self.silence_timeout < MISSED_SECONDS:
            raise ConfigError(
                f"silence_timeout must be at least {MISSED_SECONDS:g} s, because a rank sends a heartbeat only every"
                f" {HEARTBEAT_SECONDS:g} s; it is {self.silence_timeout:g}"
            )


@dataclass(frozen=True)
class Failure:
    """Why a rank failed. ``type`` is the name of an exception, or the watchdog's finding (``silent``, ``stalled``)."""

    rank: int
    type: str
    reason: str
    text: str
    """The traceback or stack, if there is one, and the reason."""
    follows: bool = False
    """Whether it only follows from the failure of another rank."""
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
    """The state of the running ranks.

    Its clock only advances while :meth:`verdict` is called regularly, so that time in which the driver itself was
    stopped or busy does not count. It does not advance while ranks are queued either.
    """

    def __init__(self, num_ranks: int, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self._clock, self._looked = 0.0, time.monotonic()
        self._vitals: dict[int, _Vitals] = {}
        self._num_ranks, self._absent = num_ranks, set(range(num_ranks))
        self._last_change = 0.0

    @property
    def anyone_came(self) -> bool:
        """Whether at least one rank has connected."""
        return len(self._absent) < self._num_ranks

    @property
    def anyone_open(self) -> bool:
        """Whether a rank that has connected has not left yet."""
        return bool(self._vitals)

    def is_open(self, rank: int) -> bool:
        """Whether this rank has connected and not left yet."""
        return rank in self._vitals

    def step(self, rank: int) -> int | None:
        """The last step that an open rank has reported, if any."""
        return self._vitals[rank].step if rank in self._vitals else None

    def hear(self, rank: int, topic: str, body: dict[str, Any]) -> None:
        """Record a message of a rank, or its end."""
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
        """The first rank that counts as failed; None if there is none. Call it at least every second.

        ``queued``: no rank runs yet, because other jobs hold the slots.
        """
        now = time.monotonic()
        self._clock += 0.0 if queued else min(now - self._looked, HEARTBEAT_SECONDS)
        self._looked = now
        return self._not_started() or self._silent() or self._stalled()

    def _not_started(self) -> Failure | None:
        limit = self._timeouts.start_timeout
        if self._absent and self._clock > limit:
            missing = ", ".join(map(str, sorted(self._absent)))
            text = f"no message from rank {missing} within {limit:g} s: its executor does not respond"
            return Failure(min(self._absent), NOT_STARTED, text, text)
        limit = min(limit, 3 * self._timeouts.silence_timeout)
        if not self._absent and not self._vitals and self._clock - self._last_change > limit:
            text = f"all ranks have finished, but their results did not arrive within {limit:g} s"
            return Failure(0, SILENT, text, text)
        return None

    def _silent(self) -> Failure | None:
        limit = self._timeouts.silence_timeout
        for rank, vitals in sorted(self._vitals.items(), key=lambda item: item[1].heard):
            if self._clock - vitals.heard > limit:
                text = (
                    f"no heartbeat for {limit:g} s: its process is stopped or starved, its host is gone, or native code"
                    " holds Python's global lock"
                )
            elif self._clock - vitals.executor_ran > limit and vitals.heard - vitals.executor_ran > MISSED_SECONDS:
                text = f"its executor has been stopped for {limit:g} s, so that its result could not arrive"
            else:
                continue
            return Failure(rank, SILENT, text, text, step=vitals.step)
        return None

    def _stalled(self) -> Failure | None:
        limit = self._timeouts.stall_timeout
        if limit is None or any(self._clock - vitals.heard > MISSED_SECONDS for vitals in self._vitals.values()):
            return None  # the others probably wait for a rank that will soon count as silent
        before_first_step = max(limit, self._timeouts.start_timeout)
        idle = {rank: self._clock - vitals.moved for rank, vitals in self._vitals.items()}
        if all(idle[rank] <= (limit if vitals.beats else before_first_step) for rank, vitals in self._vitals.items()):
            return None
        still = {rank: vitals for rank, vitals in self._vitals.items() if idle[rank] > limit / 2}
        if len(still) < len(self._vitals) and all(vitals.waiting for vitals in still.values()):
            return None  # they wait for a rank that makes progress
        rank, vitals = min(still.items(), key=lambda item: (item[1].waiting, item[1].step or 0, item[1].moved))
        where = "before its first step" if vitals.step is None else f"at step {vitals.step}"
        what = "waits for other ranks" if vitals.waiting else "is stuck"
        text = f"it {what} {where}, without progress for {idle[rank]:.0f} s"
        stack = f"Stack (most recent call last):\n{vitals.stack}" if vitals.stack else ""
        return Failure(rank, STALLED, text, stack + text, step=vitals.step)
