"""The meeting place on rank 0's host, where executors cannot reach the client of a Spark Connect server.

xgboost.spark moved its tracker to a worker for the same reason. Ranks speak to it as they speak to a driver. The client
has no way in but Spark, and what a task returns comes home when the task has ended: so what ranks say is kept here
until one short task after another fetches it (:mod:`sparkdl.cluster.relay`), and what the client says comes with these.
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
"""What these frames are. They need no nonce: each run has its own secret, and orders may come again."""
MAX_KEPT_BYTES = MAX_PAYLOAD_BYTES + 4096  # of what a rank said, and which rank it was
MAX_FETCH_BYTES = 8 << 20  # at once
FIRST_SECONDS = 60.0  # that the client's first word may take: Python may still have to start in the task that brings it
LOOK_SECONDS = 0.5
GIVEN_UP = (
    "sparkdl: the client has not been heard of for {:g} s: it was killed, has lost its server, or Spark has no slot for"
    " what it asks; this run's ranks end\n"
)
FETCH_SECONDS = 10.0
PAUSES = 0.1, 0.3, 1.0  # seconds


class MeetingPlace:
    """Channel, rendezvous, and what ranks have said, for as long as a run lasts. Runs on rank 0.

    It ends when all ranks have left and the client knows all that they said, and earlier when the client ends it or is
    not heard of for ``lease`` seconds: ranks that still run end with it, and rank 0's log says why.
    """

    def __init__(self, host: str, *, size: int, secret: bytes, token: str, lease: float) -> None:
        self._secret, self._lease = secret, lease
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._writer = FrameWriter(secret, KEPT, b"", max_bytes=MAX_KEPT_BYTES)
        self._kept: list[bytes] = []
        self._known = 0  # how many frames the client has; they are kept no longer
        self._open = set(range(size))
        self._heard, self._patience = time.monotonic(), max(FIRST_SECONDS, lease)
        self._ended = threading.Event()
        self._log = os.dup(2)  # what a rank prints is soon caught for the client, who would not hear of its own end
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
        """Obey the client; what it does not know yet. Raises ValueError for an order that is not authentic."""
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
    """What a fetch brings: how many frames the client knows, whether ranks shall stop, or end. Runs on the driver."""
    return FrameWriter(secret, ORDER, b"").pack("fetch", {"known": known, "stop": stop, "end": end})


def kept_reader(secret: bytes) -> FrameReader:
    """Reads all that a run's fetches bring, in order: a topic, and who said it. Runs on the driver."""
    reader = FrameReader(secret, KEPT, b"")
    reader.max_bytes = MAX_KEPT_BYTES
    return reader


def fetch(address: RendezvousAddress, request: bytes) -> bytes | None:
    """Bring an order, and what has been said since the last one; None if nobody is there any more. Runs in a task."""
    for pause in PAUSES:  # connections of strangers may have pushed this one out
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
