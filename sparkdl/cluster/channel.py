"""What ranks tell the driver while they run: authenticated frames of JSON over TCP, never pickled.

The driver greets a connection with a nonce. A frame is the payload's length (4 bytes, big-endian), an HMAC-SHA256 over
nonce, sequence number (8 bytes) and payload under the run's secret, and the payload: the JSON of ``[topic, body]``. A
frame that is too long, not authentic, replayed or not JSON ends its connection and changes nothing else.
"""

import hashlib
import hmac
import json
import os
import queue
import secrets
import selectors
import socket
import struct
import threading
import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

__all__ = ["MAX_PAYLOAD_BYTES", "Channel", "Event", "Sender"]

MAX_PAYLOAD_BYTES = 1 << 20
MAX_STRANGERS = 64  # connections that have not proved themselves yet
STRANGER_SECONDS = 10.0  # how long they may take to do so
NONCE_BYTES = 16
MAC_BYTES = 32
HEADER_BYTES = 4 + MAC_BYTES


class Event(NamedTuple):
    """Something that happened to a rank: a message of its own (any topic), or ``gone``: it left without ``bye``."""

    rank: int
    topic: str
    body: dict[str, Any]


@dataclass
class _Connection:
    """One connection as the driver sees it; ``rank`` is None until a first frame has proved that it has the secret."""

    nonce: bytes
    opened: float
    rank: int | None = None
    body: dict[str, Any] = field(default_factory=dict)
    sequence: int = 0
    said_bye: bool = False
    buffer: bytearray = field(default_factory=bytearray)


class Channel:
    """The driver's end: one thread that puts an :class:`Event` into ``events`` for every authentic frame.

    The first event of a rank is ``hello`` with what it says about itself (host, process).
    """

    def __init__(self, bind_address: str, *, size: int, secret: bytes, events: "queue.SimpleQueue[Any]") -> None:
        self._size, self._secret, self._events = size, secret, events
        self._listener = socket.create_server((bind_address, 0), backlog=max(128, size))
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._wake, self._stop = socket.socketpair()
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._selector.register(self._wake, selectors.EVENT_READ, None)
        self._thread = threading.Thread(target=self._serve, name="sparkdl-channel", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close every connection; ranks that still run take it as the order to end."""
        self._stop.send(b".")
        self._thread.join()
        self._stop.close()

    def _serve(self) -> None:
        running = True
        while running:
            for key, _ in self._selector.select(timeout=1.0):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj is self._wake:
                    running = False
                else:
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
        connection = _Connection(secrets.token_bytes(NONCE_BYTES), time.monotonic())
        client.setblocking(False)
        try:
            client.send(connection.nonce)
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
            connection.buffer += data
            while frame := self._next_payload(connection):
                self._handle(connection, *frame)
        except BlockingIOError:
            return
        except (OSError, ValueError):
            data = b""
        if not data:
            self._drop(client, connection)

    def _next_payload(self, connection: _Connection) -> tuple[str, dict[str, Any]] | None:
        """Topic and body of the next whole frame, None if it is not there yet; ValueError if it is not authentic."""
        if len(connection.buffer) < HEADER_BYTES:
            return None
        (length,) = struct.unpack_from(">I", connection.buffer)
        if length > MAX_PAYLOAD_BYTES:
            raise ValueError("the frame is too long")
        if len(connection.buffer) < HEADER_BYTES + length:
            return None
        mac = bytes(connection.buffer[4:HEADER_BYTES])
        payload = bytes(connection.buffer[HEADER_BYTES : HEADER_BYTES + length])
        del connection.buffer[: HEADER_BYTES + length]
        if not hmac.compare_digest(mac, _mac(self._secret, connection.nonce, connection.sequence, payload)):
            raise ValueError("the frame is not authentic")
        connection.sequence += 1
        topic, body = json.loads(payload)
        if not isinstance(topic, str) or not isinstance(body, dict):
            raise ValueError("the frame does not hold a topic and a body")
        return topic, body

    def _handle(self, connection: _Connection, topic: str, body: dict[str, Any]) -> None:
        if connection.rank is None:
            rank = body.get("rank")
            if topic != "hello" or not isinstance(rank, int) or not 0 <= rank < self._size:
                raise ValueError("the first frame is not a rank's hello")
            connection.rank, connection.body = rank, body
        connection.said_bye = topic == "bye"
        self._events.put(Event(connection.rank, topic, body))

    def _strangers(self) -> list[tuple[Any, _Connection]]:
        keys = self._selector.get_map().values()
        return [(key.fileobj, key.data) for key in keys if key.data is not None and key.data.rank is None]

    def _drop_slow_strangers(self) -> None:
        for client, connection in self._strangers():
            if time.monotonic() - connection.opened > STRANGER_SECONDS:
                self._drop(client, connection)

    def _drop(self, client: socket.socket, connection: _Connection) -> None:
        self._selector.unregister(client)
        client.close()
        if connection.rank is not None and not connection.said_bye:
            self._events.put(Event(connection.rank, "gone", connection.body))


class Sender:
    """A rank's end. When the driver closes the connection before :meth:`close`, the run is over; this process ends."""

    def __init__(self, address: tuple[str, int], *, secret: bytes, **hello: Any) -> None:
        self._secret = secret
        self._lock = threading.Lock()
        self._sequence = 0
        self._closing = False
        try:
            self._socket = socket.create_connection(address, timeout=30)
        except OSError as error:
            raise ConnectionError(
                f"rank {hello['rank']} cannot reach the driver at {address[0]}:{address[1]} ({error}); set"
                " spark.driver.host to an address of the driver that executors can reach"
            ) from None
        self._socket.settimeout(None)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._nonce = self._socket.recv(NONCE_BYTES, socket.MSG_WAITALL)
        self.send("hello", hello)
        threading.Thread(target=self._end_with_the_driver, name="sparkdl-channel", daemon=True).start()

    def send(self, topic: str, body: dict[str, Any]) -> None:
        """Send one frame. Raises TypeError for what JSON cannot hold and ValueError for what is too long."""
        payload = json.dumps([topic, body]).encode()
        if len(payload) > MAX_PAYLOAD_BYTES:
            raise ValueError(f"a message may have {MAX_PAYLOAD_BYTES:,} bytes as JSON; this one has {len(payload):,}")
        with self._lock:
            mac = _mac(self._secret, self._nonce, self._sequence, payload)
            self._socket.sendall(struct.pack(">I", len(payload)) + mac + payload)
            self._sequence += 1

    def close(self) -> None:
        """Say goodbye, so that the driver knows that nothing is missing."""
        self._closing = True
        try:
            self.send("bye", {})
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the driver went first: there is nobody to say goodbye to
        self._socket.close()

    def _end_with_the_driver(self) -> None:
        try:
            while self._socket.recv(1024):
                pass
        except OSError:
            pass
        if not self._closing:
            os._exit(1)  # the main thread may wait in native code for ranks that have ended already


def _mac(secret: bytes, nonce: bytes, sequence: int, payload: bytes) -> bytes:
    return hmac.digest(secret, nonce + struct.pack(">Q", sequence) + payload, hashlib.sha256)
