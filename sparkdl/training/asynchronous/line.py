"""A task's connection to the coordinator: requests, heartbeats, and the end of the run. Runs in a task."""

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
LOST_SECONDS = 20.0  # without an answer of the coordinator, after which a task ends itself


class RunEnded(Exception):  # noqa: N818 - nothing went wrong
    """The coordinator has no more work for this task."""


@dataclass(frozen=True)
class Invitation:
    """What a task needs to join a run; it is sent inside Spark's task, as the secret of a rank is."""

    address: str
    """The coordinator's host and port."""
    credentials: Credentials = field(repr=False)
    timeout: float
    """Seconds after which a coordinator that does not answer is considered lost."""
    patience: float
    """The same for a server, in seconds: transfers may be long, and the coordinator ends a server that hangs."""


class Line:
    """A task's connection to the coordinator. When the coordinator is lost, the process ends."""

    def __init__(self, invitation: Invitation, role: Role, number: int) -> None:
        self.invitation, self.role, self.number = invitation, role, number
        self._connection = Connection(invitation.address, invitation.credentials, timeout=invitation.timeout)
        self._attempt = 0
        self._ended = threading.Event()
        self._closing = threading.Event()
        self._beating = threading.Thread(target=self._beat, name="sparkdl-line", daemon=True)

    def __enter__(self) -> Self:
        self.welcome = self._call("join", host=self.own_host, machine=socket.gethostname(), process=os.getpid())
        """The coordinator's answer when the task joined."""
        self._attempt = self.welcome["attempt"]
        self._beating.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Report an exception to the coordinator and suppress it: the driver, and not Spark, decides on retries."""
        if isinstance(error, Exception) and not isinstance(error, RunEnded):
            self._call("fail", **describe_failure(error))
        self._closing.set()
        self._beating.join()  # it may be in a call
        self._connection.close()
        return isinstance(error, Exception)

    @property
    def own_host(self) -> str:
        """The address of this machine on its route to the coordinator."""
        return address_towards(self.invitation.address)

    @property
    def ended(self) -> bool:
        """Whether the coordinator has told this task to end."""
        return self._ended.is_set()

    def ask(self, name: str, **keywords: Any) -> dict[str, Any]:
        """Call the coordinator until it answers with something else than to wait.

        Raises :class:`RunEnded` when the coordinator ends the task.
        """
        while not self.ended:
            answer = self._call(name, **keywords)
            if answer.get("end"):
                break
            if not answer.get("wait"):
                return answer
        raise RunEnded

    def tell(self, name: str, **keywords: Any) -> None:
        """Call the coordinator, and ignore the answer."""
        self._call(name, **keywords)

    def find(self, server: int, lost: str | None) -> str:
        """The address of a server, once it differs from the ``lost`` one."""
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
                    os._exit(1)  # the main thread may wait forever
