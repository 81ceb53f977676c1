"""The driver's end of the channel: it receives messages of authenticated ranks, and can request that all ranks stop.

A rank whose connection ends without ``bye`` is dead: this is how a killed process or a lost executor is noticed.
"""

import queue
import secrets
import selectors
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from sparkdl.cluster.frames import MAX_PAYLOAD_BYTES, NONCE_BYTES, TO_DRIVER, TO_RANK, FrameReader, FrameWriter
from sparkdl.cluster.sender import notice_lost_peers

__all__ = ["Channel", "Event"]

MAX_STRANGERS = 64  # connections that are not authenticated yet
MAX_HELLO_BYTES = 1 << 12  # the most that one of them may send
STRANGER_SECONDS = 10.0  # the time that they have to authenticate themselves


class Event(NamedTuple):
    """A message of a rank (any topic), or ``gone``: its connection ended without ``bye``."""

    rank: int
    topic: str
    body: dict[str, Any]


@dataclass
class _Connection:
    """One connection on the driver; ``rank`` is None until its first frame has been authenticated."""

    reader: FrameReader
    opened: float
    rank: int | None = None
    writer: FrameWriter | None = None
    body: dict[str, Any] = field(default_factory=dict)
    said_bye: bool = False


class Channel:
    """One thread that puts an :class:`Event` into ``events`` for every authentic frame.

    The first event of a rank is ``hello``, with its host and process. A frame that is too long, not authentic, replayed
    or not JSON ends its connection and has no other effect.
    """

    def __init__(self, bind_address: str, *, size: int, secret: bytes, events: "queue.SimpleQueue[Any]") -> None:
        self._size, self._secret, self._events = size, secret, events
        self._stop_requested = False
        self._listener = socket.create_server((bind_address, 0), backlog=max(128, size))
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._wake, self._orders = socket.socketpair()
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._selector.register(self._wake, selectors.EVENT_READ, None)
        self._thread = threading.Thread(target=self._serve, name="sparkdl-channel", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection. Ranks that are still running end at once."""
        if self._thread.is_alive():
            self._orders.send(b"q")
            self._thread.join()
            self._orders.close()

    def request_stop(self) -> None:
        """Ask all ranks, also those that connect later, to stop. Does nothing if the channel is closed."""
        if not self._stop_requested and self._thread.is_alive():
            self._stop_requested = True
            self._orders.send(b"s")

    def _serve(self) -> None:
        orders = b""
        while b"q" not in orders:
            for key, _ in self._selector.select(timeout=1.0):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj is self._wake:
                    orders = self._wake.recv(64)
                    if b"s" in orders:
                        self._send_stop()
                elif key.fd in self._selector.get_map():  # it may have been dropped in this iteration
                    self._read(key.fileobj, key.data)  # type: ignore[arg-type]
            self._drop_slow_strangers()
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:
            return
        nonce = secrets.token_bytes(NONCE_BYTES)
        connection = _Connection(FrameReader(self._secret, TO_DRIVER, nonce), time.monotonic())
        connection.reader.max_bytes = MAX_HELLO_BYTES
        client.setblocking(False)
        try:
            notice_lost_peers(client)
            client.send(nonce)
        except OSError:
            client.close()
            return
        strangers = self._strangers()
        if len(strangers) >= MAX_STRANGERS:
            self._drop(*min(strangers, key=lambda pair: pair[1].opened))
        self._selector.register(client, selectors.EVENT_READ, connection)

    def _read(self, client: socket.socket, connection: _Connection) -> None:
        try:
            data = client.recv(1 << 18)
            for topic, body in connection.reader.feed(data):
                if connection.rank is None:
                    self._welcome(client, connection, topic, body)
                connection.said_bye = topic == "bye"
                self._events.put(Event(connection.rank, topic, body))  # type: ignore[arg-type]
        except BlockingIOError:
            return
        except (OSError, ValueError):
            data = b""
        if not data:
            self._drop(client, connection)

    def _welcome(self, client: socket.socket, connection: _Connection, topic: str, body: dict[str, Any]) -> None:
        """Authenticate a new connection as a rank by its hello. Raises ValueError if the hello is not authentic."""
        rank, nonce = body.get("rank"), body.pop("nonce", None)
        if topic != "hello" or type(rank) is not int or not 0 <= rank < self._size or not isinstance(nonce, str):
            raise ValueError("the first frame is not a rank's hello")
        if any(known.rank == rank for _, known in self._connections()):
            raise ValueError("this rank is already connected")
        connection.writer = FrameWriter(self._secret, TO_RANK, bytes.fromhex(nonce))
        connection.rank, connection.body = rank, body
        connection.reader.max_bytes = MAX_PAYLOAD_BYTES
        client.send(connection.writer.pack("welcome", {}))
        if self._stop_requested:
            client.send(connection.writer.pack("stop", {}))

    def _send_stop(self) -> None:
        for client, connection in self._connections():
            if connection.writer:
                with suppress(OSError):  # a broken connection is noticed when it is read
                    client.send(connection.writer.pack("stop", {}))

    def _connections(self) -> list[tuple[Any, _Connection]]:
        return [(key.fileobj, key.data) for key in self._selector.get_map().values() if key.data is not None]

    def _strangers(self) -> list[tuple[Any, _Connection]]:
        return [pair for pair in self._connections() if pair[1].rank is None]

    def _drop_slow_strangers(self) -> None:
        for client, connection in self._strangers():
            if time.monotonic() - connection.opened > STRANGER_SECONDS:
                self._drop(client, connection)

    def _drop(self, client: socket.socket, connection: _Connection) -> None:
        self._selector.unregister(client)
        client.close()
        if connection.rank is not None and not connection.said_bye:
            self._events.put(Event(connection.rank, "gone", connection.body))
