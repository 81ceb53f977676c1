"""Follow a run from the driver: its messages, its logs, and who failed first."""

import pickle
import queue
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, Self

from tqdm import tqdm

from sparkdl.cluster.channel import Channel, Event
from sparkdl.cluster.logs import print_lines
from sparkdl.cluster.rank import Assignment, Outcome
from sparkdl.cluster.rendezvous import Rendezvous
from sparkdl.errors import RankError

__all__ = ["Finished", "LogVerbosity", "OnMessage", "Supervision", "Workers"]

LogVerbosity = Literal["all", "log_callback_only"]
OnMessage = Callable[[int, dict[str, Any]], None]

GRACE_SECONDS = 3.0  # how long the other ranks have to notice that one has failed
FAREWELL_SECONDS = 2.0  # how long a finished run waits for what is still on its way through the channel


@dataclass(frozen=True)
class Finished:
    """All workers have ended: with outcomes, or because what runs them failed."""

    outcomes: Sequence[Outcome] = ()
    error: str | None = None


class Workers(Protocol):
    """What runs the ranks: a barrier stage or processes. It puts one :class:`Finished` into the run's events."""

    def start(self) -> None:
        """Start all ranks."""

    def cancel(self) -> None:
        """End all ranks; afterwards nothing of them is left that would still start or hold on to anything."""


@dataclass(frozen=True)
class _Failure:
    rank: int
    type: str
    reason: str
    text: str
    follows: bool
    where: str


class Supervision:
    """The driver's side of one run: channel and rendezvous while it lasts, and the loop that follows it."""

    def __init__(self, num_ranks: int, *, bind_address: str, host: str) -> None:
        self.num_ranks = num_ranks
        self.events: queue.SimpleQueue[Event | Finished] = queue.SimpleQueue()
        self._host = host
        self._secret = secrets.token_bytes(32)
        self._channel = Channel(bind_address, size=num_ranks, secret=self._secret, events=self.events)
        self._rendezvous = Rendezvous(bind_address, host=host, token=secrets.token_hex(32))
        self._failures: list[_Failure] = []
        self._places: dict[int, str] = {}
        self._open: set[int] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.__exit__()
        self._rendezvous.__exit__()

    def assignment(self, function: bytes, log_verbosity: LogVerbosity) -> Assignment:
        """What every rank needs to take part in this run."""
        return Assignment(
            function,
            channel=(self._host, self._channel.port),
            rendezvous=self._rendezvous.address,
            secret=self._secret,
            capture_output=log_verbosity == "all",
        )

    def follow(self, workers: Workers, on_message: OnMessage | None) -> list[Any]:
        """Start the workers and return the ranks' results in order.

        Raises :class:`RankError` with the first cause first. Whatever ends this early (Ctrl-C, an error in
        ``on_message``) cancels the workers.
        """
        try:
            workers.start()
            finished = self._follow(workers, on_message)
        except BaseException:
            workers.cancel()
            raise
        if self._failures or finished.error is not None:
            raise self._error(finished.error)
        outcomes = sorted(finished.outcomes, key=lambda outcome: outcome.rank)
        # Each result was pickled by this run's own rank and came back the way Spark's own results do.
        return [pickle.loads(outcome.result or b"") for outcome in outcomes]

    def _follow(self, workers: Workers, on_message: OnMessage | None) -> Finished:
        finished: Finished | None = None
        deadline: float | None = None
        while finished is None or self._open:
            try:
                event = self.events.get(timeout=None if deadline is None else max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                if finished is None:
                    workers.cancel()
                break
            if isinstance(event, Finished):
                finished = event
                deadline = time.monotonic() + FAREWELL_SECONDS
                continue
            self._receive(event, on_message)
            if self._failures and deadline is None:
                deadline = time.monotonic() + GRACE_SECONDS
        return finished or Finished(error="the other ranks did not end by themselves and were cancelled")

    def _receive(self, event: Event, on_message: OnMessage | None) -> None:
        rank, topic, body = event
        if topic == "message" and on_message:
            on_message(rank, body)
        elif topic == "log":
            print_lines(rank, body["lines"])
        elif topic == "print":
            tqdm.write(body["text"], file=sys.stdout)
        elif topic == "hello":
            self._open.add(rank)
            self._places[rank] = f"host {body['host']} ({body['machine']}, process {body['process']})"
        elif topic == "bye":
            self._open.discard(rank)
        elif topic == "failure":
            failure = _Failure(
                rank, body["type"], body["message"], body["traceback"], body["follows"], self._places[rank]
            )
            self._failures.append(failure)
        elif topic == "gone" and rank in self._open:
            self._open.discard(rank)
            if not self._failures or all(failure.follows for failure in self._failures):
                text = "its process ended without a word: killed, out of memory, or crashed in native code"
                self._failures.append(_Failure(rank, "process death", text, text, False, self._places[rank]))

    def _error(self, reason: str | None) -> RankError:
        if not self._failures:
            return RankError(f"{reason}\n\nthe ranks could not be started, or ended before they could say why")
        first, *others = sorted(self._failures, key=lambda failure: failure.follows)
        lines = [first.text.rstrip(), f"\nrank {first.rank} of {self.num_ranks} failed on {first.where}"]
        if first.type == "process death" and reason:
            lines[0] += f". {reason}"
        lines += [f"rank {other.rank} failed too: {other.text.rstrip().splitlines()[-1]}" for other in others]
        return RankError("\n".join(lines), rank=first.rank, exception_type=first.type, reason=first.reason)
