"""Follows a run from the driver: its messages, its logs, and which rank failed first."""

import pickle
import queue
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, Self

from sparkdl.cluster.backend import LaunchBackend
from sparkdl.cluster.channel import Channel, Event
from sparkdl.cluster.interrupts import plain_interrupts
from sparkdl.cluster.logs import print_lines, print_text
from sparkdl.cluster.rank import Assignment, RankResult
from sparkdl.cluster.relay import Relay
from sparkdl.cluster.rendezvous import Rendezvous, RendezvousAddress
from sparkdl.cluster.watchdog import PROCESS_DEATH, Failure, Timeouts, Watchdog
from sparkdl.errors import RankError, RunCancelledError

__all__ = ["Launch", "LogVerbosity", "OnMessage", "StageEnd", "Workers"]

LogVerbosity = Literal["all", "log_callback_only"]
OnMessage = Callable[[int, dict[str, Any]], None]

POLL_SECONDS = 0.5  # between two checks of the ranks' heartbeats and of the request to stop
GRACE_SECONDS = 3.0  # how long the other ranks have to notice that one has failed
FAREWELL_SECONDS = 5.0  # how long a finished run waits for the last messages in the channel
ORDERLY_SECONDS = 8.0  # how long an interrupted run may take to end by itself


@dataclass(frozen=True)
class StageEnd:
    """The end of all workers: their outcomes, or the error of the stage that ran them."""

    outcomes: Sequence[RankResult] = ()
    error: str | None = None
    cancelled: bool = False
    """Whether the workers were cancelled from outside."""


class Workers(Protocol):
    """Runs the ranks: a barrier stage, or processes. At the end it puts one :class:`StageEnd` into the run's events."""

    def start(self) -> None:
        """Start all ranks."""

    def cancel(self) -> None:
        """End all ranks. Afterwards none of them is running, starting, or holding a slot."""

    def queued(self) -> bool:
        """Whether no rank runs yet, because other jobs hold the slots."""

    def place(self, rank: int, others: Collection[int]) -> str:
        """Where a rank that has not reported its host is or may be; empty if unknown.

        ``others`` are the tasks of the ranks that have reported.
        """

    def leaving(self) -> bool:
        """Whether an executor that runs ranks is about to be taken away, so that ranks should move."""

    def give_up(self, task: int) -> None:
        """Start no more tasks on the host of this task: it is about to be taken away."""


class Launch:
    """The driver's side of one run: its channel, its rendezvous, and the loop that follows it.

    A ``relay`` is for ranks that cannot reach the driver: channel and rendezvous are on rank 0's host then, and
    ``bind_address`` and ``host`` are ignored.
    """

    def __init__(
        self,
        num_ranks: int,
        *,
        bind_address: str,
        host: str,
        timeouts: Timeouts,
        stop: threading.Event | None = None,
        relay: Relay | None = None,
    ) -> None:
        self.num_ranks = num_ranks
        self.events: queue.SimpleQueue[Event | StageEnd] = queue.SimpleQueue()
        self._timeouts, self._stop = timeouts, stop
        self._secret, token = secrets.token_bytes(32), secrets.token_hex(32)
        self._channel: Channel | Relay
        self._rendezvous: Rendezvous | None = None
        self._addresses = ("", 0), RendezvousAddress("", 0, token)
        if relay:
            relay.open(secret=self._secret, token=token, events=self.events)
            self._channel = relay
        else:
            self._channel = Channel(bind_address, size=num_ranks, secret=self._secret, events=self.events)
            self._rendezvous = Rendezvous(bind_address, host=host, token=token)
            self._addresses = (host, self._channel.port), self._rendezvous.address
        self._failures: list[Failure] = []
        self._hosts: dict[int, str] = {}
        self._places: dict[int, str] = {}
        self._tasks: dict[int, int] = {}
        self._preempted: set[int] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.hang_up()
        if self._rendezvous:
            self._rendezvous.__exit__()

    def hang_up(self) -> None:
        """Close the channel, which ends ranks that still run at once, unless they are stopped."""
        self._channel.close()

    def assignment(
        self,
        function: bytes,
        backend: LaunchBackend | None,
        log_verbosity: LogVerbosity,
        *,
        own_process: bool = False,
        preemption_notice: str | None = None,
    ) -> Assignment:
        """The data that every rank needs to take part in this run."""
        channel, rendezvous = self._addresses
        return Assignment(
            function,
            channel=channel,
            rendezvous=rendezvous,
            secret=self._secret,
            backend=backend,
            capture_output=log_verbosity == "all",
            lease=self._timeouts.silence_timeout,
            stack_after=self._timeouts.stall_timeout and self._timeouts.stall_timeout / 2,
            own_process=own_process,
            preemption_notice=preemption_notice,
        )

    def follow(self, workers: Workers, on_message: OnMessage | None) -> list[Any]:
        """Start the workers and return the ranks' results in order.

        Raises :class:`RankError`, with the first cause first, and :class:`RunCancelledError`. An interrupt asks the
        ranks to stop, and waits some seconds for them. Anything else that ends this early (an error in ``on_message``,
        a second interrupt) cancels them at once.
        """
        self._watchdog = Watchdog(self.num_ranks, self._timeouts)
        with plain_interrupts():
            try:
                workers.start()
                finished = self._follow(workers, on_message)
            except (KeyboardInterrupt, SystemExit):
                try:
                    self._channel.request_stop()
                    self._follow(workers, on_message, deadline=time.monotonic() + ORDERLY_SECONDS)
                finally:
                    workers.cancel()
                raise
            except BaseException:
                workers.cancel()
                raise
        if self._failures or finished.error is not None:
            raise self._error(finished, workers)
        outcomes = sorted(finished.outcomes, key=lambda outcome: outcome.rank)
        # Unpickling is safe here: each result comes from a rank of this run, through Spark's own results.
        return [pickle.loads(outcome.result or b"") for outcome in outcomes]

    def _follow(self, workers: Workers, on_message: OnMessage | None, deadline: float | None = None) -> StageEnd:
        """Handle events until all ranks have ended, or until the remaining ones have to be cancelled."""
        finished: StageEnd | None = None
        while finished is None or self._watchdog.anyone_open:
            for event in self._next_events():
                if isinstance(event, StageEnd):
                    finished = event
                    deadline = time.monotonic() + (ORDERLY_SECONDS if event.cancelled else FAREWELL_SECONDS)
                else:
                    self._receive(event, on_message)
            while self._preempted:
                workers.give_up(self._tasks[self._preempted.pop()])
            if (self._stop and self._stop.is_set()) or (finished and finished.cancelled) or workers.leaving():
                self._channel.request_stop()
            if self._failures and deadline is None:
                deadline = time.monotonic() + GRACE_SECONDS
            elif finished is None and deadline is None and (failure := self._verdict(workers)):
                self._failures.append(failure)
                deadline = time.monotonic()
            if deadline and time.monotonic() >= deadline:
                break
        if finished is None:
            workers.cancel()
        return finished or StageEnd(error="the other ranks did not end by themselves and were cancelled")

    def _verdict(self, workers: Workers) -> Failure | None:
        return self._watchdog.verdict(queued=not self._watchdog.anyone_came and workers.queued())

    def _next_events(self) -> Iterator[Event | StageEnd]:
        """The events so far; waits up to ``POLL_SECONDS`` if there are none."""
        try:
            yield self.events.get(timeout=POLL_SECONDS)
            for _ in range(self.events.qsize()):
                yield self.events.get_nowait()
        except queue.Empty:
            return

    def _receive(self, event: Event, on_message: OnMessage | None) -> None:
        rank, topic, body = event
        known = self._watchdog.is_open(rank)
        step = self._watchdog.step(rank)
        self._watchdog.hear(rank, topic, body)
        if topic == "message" and on_message:
            on_message(rank, body)
        elif topic == "log":
            print_lines(rank, body["lines"])
        elif topic == "print":
            print_text(body["text"])
        elif topic == "preempted":
            self._preempted.add(rank)
        elif topic == "hello":
            self._tasks[rank], self._hosts[rank] = body["task"], body["host"]
            self._places[rank] = f"host {body['host']} ({body['machine']}, process {body['process']})"
        elif topic == "failure":
            names = ("type", "reason", "text", "follows", "step")
            self._failures.append(Failure(rank, **{name: body[name] for name in names}))
        elif topic == "gone" and known and all(failure.follows for failure in self._failures):
            text = "its process ended without an error: killed, out of memory, or crashed in native code"
            self._failures.append(Failure(rank, PROCESS_DEATH, text, text, step=step))

    def _error(self, finished: StageEnd, workers: Workers) -> RankError | RunCancelledError:
        reason = finished.error
        if finished.cancelled:
            return RunCancelledError(f"the run was cancelled from outside. {reason}")
        if not self._failures:
            return RankError(f"{reason}\n\nthe ranks could not be started, or ended before they could report an error")
        first, *others = sorted(self._failures, key=lambda failure: failure.follows)
        place = self._places.get(first.rank) or workers.place(first.rank, self._tasks.values())
        step = "" if first.step is None else f" at step {first.step}"
        lines = [first.text.rstrip(), f"\nrank {first.rank} of {self.num_ranks} failed{step}{place and ' on '}{place}"]
        if first.type == PROCESS_DEATH and reason:
            lines[0] += f". {reason}"
        lines += [f"rank {other.rank} failed too: {other.text.rstrip().splitlines()[-1]}" for other in others]
        return RankError(
            "\n".join(lines),
            rank=first.rank,
            exception_type=first.type,
            reason=first.reason,
            step=first.step,
            host=self._hosts.get(first.rank),
        )
