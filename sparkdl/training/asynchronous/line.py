"""A task's line to the coordinator: it asks for work, says that it lives, and hears when it is over. Runs in a task."""

import os
import socket
import threading
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Self

from sparkdl.cluster.heartbeat import name_thread
from sparkdl.cluster.rank import describe_failure
from sparkdl.parameters import Connection, Credentials, address_towards

__all__ = ["Invitation", "Line", "Role", "RunEnded"]

Role = Literal["worker", "server"]
BEAT_SECONDS = 1.0
LOST_SECONDS = 20.0  # without the coordinator, after which a task has nobody left to work for


class RunEnded(Exception):  # noqa: N818 - nothing went wrong
    """The coordinator has nothing more to do for this task."""


@dataclass(frozen=True)
class Invitation:
    """What a task must know to take part in a run; travels inside Spark's task, as a rank's secret does."""

    address: str
    """Of the coordinator."""
    credentials: Credentials = field(repr=False)
    timeout: float
    """Seconds after which a coordinator that does not answer is taken for lost."""
    patience: float
    """And a server: parameters may travel for long, and a server that is stopped is ended by the coordinator."""


class Line:
    """A task's line to the coordinator. When that is gone the process ends: there is nothing left to work for."""

    def __init__(self, invitation: Invitation, role: Role, number: int) -> None:
        self.invitation, self.role, self.number = invitation, role, number
        self._connection = Connection(invitation.address, invitation.credentials, timeout=invitation.timeout)
        self._attempt = 0
        self._ended = threading.Event()
        self._closing = threading.Event()
        self._beating = threading.Thread(target=self._beat, name="sparkdl-line", daemon=True)

    def __enter__(self) -> Self:
        self.welcome = self._call("join", host=self.own_host, machine=socket.gethostname(), process=os.getpid())
        """What the coordinator has told it at the beginning."""
        self._attempt = self.welcome["attempt"]
        self._beating.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Tell what went wrong, and go in peace: the driver decides what becomes of it, and not Spark."""
        if isinstance(error, Exception) and not isinstance(error, RunEnded):
            self._call("fail", **describe_failure(error))
        self._closing.set()
        self._beating.join()  # it may be in the middle of a call
        self._connection.close()
        return isinstance(error, Exception)

    @property
    def own_host(self) -> str:
        """The address of this machine on the way to the driver."""
        return address_towards(self.invitation.address)

    @property
    def ended(self) -> bool:
        """Whether the coordinator needs this task no more."""
        return self._ended.is_set()

    def ask(self, name: str, **keywords: Any) -> dict[str, Any]:
        """A call whose answer may take its time: it is repeated as long as the coordinator asks to wait.

        Raises :class:`RunEnded`.
        """
        while not self.ended:
            answer = self._call(name, **keywords)
            if answer.get("end"):
                break
            if not answer.get("wait"):
                return answer
        raise RunEnded

    def tell(self, name: str, **keywords: Any) -> None:
        """A call that is not answered."""
        self._call(name, **keywords)

    def find(self, server: int, lost: str | None) -> str:
        """The address of a server, which is not the one that was lost."""
        return str(self.ask("find", server=server, lost=lost)["address"])

    def _call(self, name: str, **keywords: Any) -> dict[str, Any]:
        return self._connection.call(name, role=self.role, number=self.number, attempt=self._attempt, **keywords)

    def _beat(self) -> None:
        name_thread(f"{self.role} {self.number}")
        heard = time.monotonic()
        while not self._closing.wait(BEAT_SECONDS):
            try:
                if self._call("beat").get("end"):
                    self._ended.set()
                heard = time.monotonic()
            except ConnectionError:
                if time.monotonic() - heard > LOST_SECONDS and not self._closing.is_set():
                    os._exit(1)  # the main thread may wait for what never comes
