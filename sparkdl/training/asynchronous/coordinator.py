"""The coordinator: which worker has which portion of the work, and where servers are. No tensor passes through it.

Runs where :func:`~sparkdl.training.asynchronous.follow.follow` does.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from sparkdl.parameters import Connection, Credentials, Endpoint
from sparkdl.settings import Cluster
from sparkdl.training.asynchronous.line import Invitation, Role
from sparkdl.training.asynchronous.portions import Portions

__all__ = ["Coordinator", "Member", "Report"]

MOVES = 2  # ticks of a worker's clock per push: one for the fetch, one for the push
WAIT_SECONDS = 0.5  # how long a call waits for a change before the task has to call again
GIVEN_UP = {"end": True, "wait": True}  # the answer to a task that is considered lost


@dataclass
class Member:
    """A task that has joined."""

    place: str
    """Where it runs, for people."""
    attempt: int
    """Counts all tasks that have joined, from 1."""
    heard: float
    """When it last spoke, by ``time.monotonic``."""
    address: str | None = None
    """A server's host and port; None until it serves, and for workers."""


class Report(NamedTuple):
    """A failure that a task has reported."""

    role: Role
    number: int
    failure: Mapping[str, Any]


class Coordinator:
    """Deals portions to workers and tells them where servers are. Threads answer calls; the main thread deals.

    Each portion counts once. The portions of a worker that is lost, or joins again, are dealt to others.
    """

    def __init__(
        self,
        bind_address: str,
        host: str,
        cluster: Cluster,
        *,
        staleness: int | None,
        credentials: Credentials | None = None,
    ) -> None:
        """``staleness`` is how many pushes a worker may be ahead of the slowest one; None sets no bound.

        ``credentials`` are new ones by default.
        """
        self._changed = threading.Condition()
        self._members: dict[tuple[Role, int], Member] = {}
        self._portions = Portions(())
        self._deals = self._joined = 0
        self._clocks: dict[str, int] = {}
        """By worker that has a portion: how often it has fetched and pushed. Used where staleness is bounded."""
        self._staleness, self._timeout = staleness, cluster.silence_timeout
        self._ended = False
        self.done = 0
        """Portions that are finished, since the beginning of the run."""
        self.checkpoint: str | None = None
        """The path of the checkpoint that a server begins from when it joins."""
        self.reports: list[Report] = []
        """Failures that have not been handled yet."""
        self.credentials = credentials or Credentials.create()
        answers: dict[str, Callable[..., dict[str, Any] | None]] = {
            name: self._answering(getattr(self, f"_answer_{name}"))
            for name in ("join", "serve", "beat", "find", "next", "finish", "give_back", "advance", "keep_pace", "fail")
        }
        self._endpoint = Endpoint(bind_address, self.credentials, answers)
        self._servers = cluster.servers
        self._lines: dict[str, Connection] = {}
        address = f"{host}:{self._endpoint.port}"
        self.invitation = Invitation(address, self.credentials, cluster.silence_timeout, cluster.stall_timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for line in self._lines.values():
            line.close()
        self._endpoint.shutdown()

    def deal(self, orders: Sequence[Mapping[str, Any]], *, at_once: int | None = None) -> Portions:
        """Deal these portions to workers, at most ``at_once`` at a time; returns without waiting for them."""
        with self._changed:
            self._portions = Portions(orders, at_once=at_once)
            self._deals += 1
            self._clocks = {str(number): 0 for (role, number) in self._members if role == "worker"}
            self._changed.notify_all()
            return self._portions

    def wait(self, condition: Callable[[], bool], *, seconds: float) -> None:
        """Return when the condition is true, a failure has been reported, or ``seconds`` have passed."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self.reports) or condition(), timeout=seconds)

    def dismiss(self) -> None:
        """Tell all tasks to end."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    @property
    def serving(self) -> bool:
        """Whether all servers serve."""
        return all(self._address(server) for server in range(self._servers))

    def count(self, role: Role) -> int:
        """How many tasks of a role have joined and are not known to be lost."""
        return sum(each == role for each, _ in self._members)

    def has(self, role: Role, number: int) -> bool:
        """Whether a task has joined and is not known to be lost."""
        return (role, number) in self._members

    def silent(self) -> list[tuple[Role, int]]:
        """The tasks that have not called for longer than the timeout."""
        now = time.monotonic()
        return [key for key, member in list(self._members.items()) if now - member.heard > self._timeout]

    def lose(self, role: Role, number: int) -> Member | None:
        """Remove a task that is gone; a worker's portions are dealt to others. Returns its entry, if there is one."""
        with self._changed:
            member = self._members.pop((role, number), None)
            if role == "worker":
                self._portions.give_back(str(number))
                self._clocks.pop(str(number), None)
            self._changed.notify_all()
            return member

    def call_server(self, server: int, name: str, **keywords: Any) -> dict[str, Any]:
        """Call a server. Raises ConnectionError when it is not running or does not answer."""
        address = self._address(server)
        if address is None:
            raise ConnectionError(f"server {server} is not running")
        line = self._lines.get(address)
        if line is None:
            line = Connection(address, self.credentials, timeout=self.invitation.patience)
            self._lines[address] = line
        return line.call(name, **keywords)

    def _address(self, server: int) -> str | None:
        member = self._members.get(("server", server))
        return member.address if member else None

    def _answering(self, answer: Callable[..., dict[str, Any] | None]) -> Callable[..., dict[str, Any] | None]:
        """Answer one call at a time; each is a sign of life. A task that is considered lost is told to end."""

        def locked(role: Role, number: int, attempt: int, **keywords: Any) -> dict[str, Any] | None:
            with self._changed:
                member = self._members.get((role, number))
                if attempt and (member is None or member.attempt != attempt):
                    return GIVEN_UP
                if member:
                    member.heard = time.monotonic()
                found = answer(role, number, **keywords)
                self._changed.notify_all()
                return found

        return locked

    def _answer_join(self, role: Role, number: int, *, host: str, machine: str, process: int) -> dict[str, Any]:
        self.lose(role, number)  # a task that was restarted has lost its portions
        place = f"host {host} ({machine}, process {process})"
        self._joined += 1
        self._members[role, number] = Member(place, self._joined, time.monotonic())
        if role == "worker":
            self._clocks[str(number)] = min(self._clocks.values(), default=0)
        return {"attempt": self._joined, "checkpoint": self.checkpoint}

    def _answer_serve(self, role: Role, number: int, *, address: str) -> None:
        self._members[role, number].address = address

    def _answer_beat(self, role: Role, number: int) -> dict[str, Any]:
        return {"end": self._ended}

    def _answer_find(self, role: Role, number: int, *, server: int, lost: str | None) -> dict[str, Any]:
        self._changed.wait_for(lambda: self._address(server) not in (None, lost), timeout=WAIT_SECONDS)
        address = self._address(server)
        return {"wait": True} if address in (None, lost) else {"address": address}

    def _answer_next(self, role: Role, number: int) -> dict[str, Any]:
        """A worker's next portion; none if the worker was lost while it waited, as nobody would receive it."""
        worker, member = str(number), self._members.get((role, number))
        found = self._portions.take(worker)
        if found is None and not self._portions.has_any(worker):
            self._clocks.pop(worker, None)  # others do not wait for a worker without work

        def lost() -> bool:
            return self._members.get((role, number)) is not member

        def take() -> bool:
            nonlocal found
            if lost():
                return True
            found = found or self._portions.take(worker)
            return found is not None or self._ended

        self._changed.wait_for(take, timeout=WAIT_SECONDS)
        if lost():
            return GIVEN_UP
        if found is None:
            return {"wait": True, "end": self._ended}
        portion, order = found
        self._clocks.setdefault(worker, min(self._clocks.values(), default=0))
        return {"deal": self._deals, "portion": portion, "order": order}

    def _answer_finish(self, role: Role, number: int, *, deal: int, portion: int, result: Any) -> None:
        if deal == self._deals:
            self.done += self._portions.finish(str(number), portion, result)

    def _answer_give_back(self, role: Role, number: int, *, deal: int, portion: int) -> None:
        if deal == self._deals:
            self._portions.give_back(str(number), portion)

    def _answer_advance(self, role: Role, number: int, *, count: int) -> None:
        if str(number) in self._clocks:
            self._clocks[str(number)] += count

    def _answer_keep_pace(self, role: Role, number: int) -> dict[str, Any]:
        """Answer once the worker is within the staleness bound of the slowest one."""
        ahead = MOVES * (self._staleness or 0)

        def near() -> bool:
            return self._clocks.get(str(number), 0) <= min(self._clocks.values(), default=0) + ahead

        return {} if self._changed.wait_for(near, timeout=WAIT_SECONDS) else {"wait": True}

    def _answer_fail(self, role: Role, number: int, **failure: Any) -> None:
        self.reports.append(Report(role, number, failure))
