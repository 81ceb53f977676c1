"""The meeting place on rank 0's host, for runs in which executors cannot reach the client of a Spark Connect server.

xgboost.spark moved its tracker to a worker for the same reason. To ranks, the meeting place looks like a driver. The
client can only reach it through Spark tasks, whose results arrive when they end. So the messages of ranks are kept here
until short tasks, one after another, fetch them (:mod:`sparkdl.cluster.relay`). The client's orders come with these
tasks.
"""

import http.client
import os
import queue
import socket
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Self

from sparkdl.cluster.channel import Channel, Event
from sparkdl.cluster.frames import MAX_PAYLOAD_BYTES, FrameReader, FrameWriter
from sparkdl.cluster.rendezvous import Rendezvous, RendezvousAddress

__all__ = ["MeetingPlace", "fetch", "kept_reader", "order"]

KEPT, ORDER = b"kept at the meeting place", b"order to the meeting place"
"""The contexts of these frames. They need no nonce: each run has its own secret, and repeated orders are harmless."""
MAX_KEPT_BYTES = MAX_PAYLOAD_BYTES + 4096  # of a rank's message with the rank
MAX_FETCH_BYTES = 8 << 20  # of the messages that one task fetches
FIRST_SECONDS = 60.0  # until the client's first order: Python may have to start first in the task that brings it
LOOK_SECONDS = 0.5
GIVEN_UP = (
    "sparkdl: the client has sent nothing for {:g} s: it was killed, has lost its server, or Spark has no slot for its"
    " tasks; this run's ranks end\n"
)
FETCH_SECONDS = 10.0
PAUSES = 0.1, 0.3, 1.0  # seconds


class MeetingPlace:
    """Channel, rendezvous, and the messages of ranks, for the duration of a run. Runs on rank 0.

    It ends when all ranks have left and the client has all their messages. It ends earlier if the client orders it, or
    sends nothing for ``lease`` seconds; then ranks that still run end, too, and rank 0's log has the reason.
    """

    def __init__(self, host: str, *, size: int, secret: bytes, token: str, lease: float) -> None:
        self._secret, self._lease = secret, lease
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._writer = FrameWriter(secret, KEPT, b"", max_bytes=MAX_KEPT_BYTES)
        self._kept: list[bytes] = []
        self._known = 0  # the number of frames that the client has fetched; they are no longer kept
        self._open = set(range(size))
        self._heard, self._patience = time.monotonic(), max(FIRST_SECONDS, lease)
        self._ended = threading.Event()
        self._log = os.dup(2)  # the executor's log: rank 0's own stderr will be captured for the client
        bind_address = socket.gethostbyname(host)
        self._channel = Channel(bind_address, size=size, secret=secret, events=self._events)
        self._rendezvous = Rendezvous(bind_address, host=host, token=token, exchange=self._exchange)
        self.ports = self._channel.port, self._rendezvous.address.port
        self._thread = threading.Thread(target=self._look, name="sparkdl-meeting-place", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._ended.set()
        self._thread.join()
        self._rendezvous.__exit__()
        os.close(self._log)

    def _look(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            if time.monotonic() - self._heard > self._patience:
                self._ended.set()
                with suppress(OSError):  # nobody reads it
                    os.write(self._log, GIVEN_UP.format(self._patience).encode())
        self._channel.close()

    def _exchange(self, request: bytes) -> bytes:
        """Obey the client's order, and return the messages that it lacks. Raises ValueError if it is not authentic."""
        ((_, wanted),) = FrameReader(self._secret, ORDER, b"").feed(request)
        self._heard, self._patience = time.monotonic(), self._lease
        del self._kept[: max(wanted["known"] - self._known, 0)]
        self._known = max(wanted["known"], self._known)
        if wanted["stop"]:
            self._channel.request_stop()
        with suppress(queue.Empty):
            while True:
                self._keep(self._events.get_nowait())
        if wanted["end"] or not (self._open or self._kept):
            self._ended.set()
        answer = b""
        for frame in self._kept:
            answer += frame
            if len(answer) > MAX_FETCH_BYTES:
                break
        return answer

    def _keep(self, event: Event) -> None:
        rank, topic, body = event
        self._kept.append(self._writer.pack(topic, {"rank": rank, "body": body}))
        if topic in ("bye", "gone"):
            self._open.discard(rank)


def order(secret: bytes, *, known: int, stop: bool, end: bool) -> bytes:
    """The order of a fetch: how many frames the client has, whether ranks shall stop, or end. Runs on the driver."""
    return FrameWriter(secret, ORDER, b"").pack("fetch", {"known": known, "stop": stop, "end": end})


def kept_reader(secret: bytes) -> FrameReader:
    """A reader for the messages that a run's fetches return, in order. Runs on the driver."""
    reader = FrameReader(secret, KEPT, b"")
    reader.max_bytes = MAX_KEPT_BYTES
    return reader


def fetch(address: RendezvousAddress, request: bytes) -> bytes | None:
    """Deliver an order, and return the new messages; None if the meeting place has ended. Runs in a task."""
    for pause in PAUSES:  # retries: unauthenticated connections may have displaced this one
        connection = http.client.HTTPConnection(address.address, address.port, timeout=FETCH_SECONDS)
        try:
            connection.request("POST", f"/{address.token}", body=request)
            answer = connection.getresponse()
            if answer.status == http.client.OK:
                return answer.read()
        except ConnectionRefusedError:
            return None
        except ConnectionError:
            pass
        finally:
            connection.close()
        time.sleep(pause)
    raise ConnectionError(f"the meeting place at {address.host}:{address.port} does not accept messages")
