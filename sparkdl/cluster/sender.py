"""A rank's end of the channel: what it tells the driver, and what the driver orders. Runs on a rank."""

import os
import secrets
import socket
import threading
import time
from typing import Any

from sparkdl.cluster.frames import NONCE_BYTES, TO_DRIVER, TO_RANK, FrameReader, FrameWriter
from sparkdl.cluster.own_executor import end_stopped, own_executor

__all__ = ["Sender", "notice_lost_peers"]

CONNECT_SECONDS = 30.0  # how long a rank tries
ATTEMPT_SECONDS = 5.0  # how long one connection may take until driver and rank know each other
LOST_PEER_SECONDS = 20  # a host that vanished without a word is noticed after so long


class Sender:
    """The connection of one rank. When the driver ends it before :meth:`close`, the run is over; this process ends.

    An executor that is stopped ends with it. Driver and rank both prove that they hold the run's secret: the driver
    greets with a nonce, the rank's ``hello`` carries one of its own, and the driver's ``welcome`` answers that.
    """

    def __init__(
        self, address: tuple[str, int], *, secret: bytes, patience: float = CONNECT_SECONDS, **hello: Any
    ) -> None:
        self.stop_requested = False
        """Whether the driver has asked this rank to come to an end."""
        self._lock = threading.Lock()
        self._closing = False
        deadline = time.monotonic() + patience
        while True:
            try:
                self._connect(address, secret, hello)
                break
            except (OSError, ValueError) as error:  # too many connections of strangers may have pushed this rank out
                if time.monotonic() > deadline or isinstance(error, ConnectionRefusedError):
                    raise ConnectionError(
                        f"rank {hello['rank']} cannot reach the driver at {address[0]}:{address[1]} ({error}); set"
                        " spark.driver.host to an address of the driver that executors can reach"
                    ) from None
                time.sleep(0.05)
        threading.Thread(target=self._listen, name="sparkdl-channel", daemon=True).start()

    def send(self, topic: str, body: dict[str, Any]) -> None:
        """Send one frame. Raises TypeError for what JSON cannot hold and ValueError for what is too long."""
        with self._lock:
            self._socket.sendall(self._writer.pack(topic, body))

    def close(self) -> None:
        """Say goodbye, so that the driver knows that nothing is missing."""
        self._closing = True
        try:
            self.send("bye", {})
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the driver went first: there is nobody to say goodbye to
        self._socket.close()

    def _connect(self, address: tuple[str, int], secret: bytes, hello: dict[str, Any]) -> None:
        connection = socket.create_connection(address, timeout=ATTEMPT_SECONDS)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            notice_lost_peers(connection)
            nonce = connection.recv(NONCE_BYTES, socket.MSG_WAITALL)
            own_nonce = secrets.token_bytes(NONCE_BYTES)
            self._writer = FrameWriter(secret, TO_DRIVER, nonce)
            self._reader = FrameReader(secret, TO_RANK, own_nonce)
            connection.sendall(self._writer.pack("hello", {**hello, "nonce": own_nonce.hex()}))
            while not self._take(connection.recv(1 << 12)):
                pass
            connection.settimeout(None)
        except BaseException:
            connection.close()
            raise
        self._socket = connection

    def _take(self, data: bytes) -> list[str]:
        """Obey what has arrived; return its topics. Raises OSError at the end of the connection."""
        if not data:
            raise ConnectionResetError("the driver closed the connection")
        topics = [topic for topic, _ in self._reader.feed(data)]
        self.stop_requested = self.stop_requested or "stop" in topics
        return topics

    def _listen(self) -> None:
        try:
            while True:
                self._take(self._socket.recv(1 << 12))
        except (OSError, ValueError):
            if not self._closing:
                end_stopped(own_executor())
                os._exit(1)  # the main thread may wait in native code for ranks that have ended already


def notice_lost_peers(connection: socket.socket) -> None:
    """Let a connection fail when the other host has vanished, whether there is something to send or not."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {
        "TCP_KEEPIDLE": LOST_PEER_SECONDS // 4,
        "TCP_KEEPINTVL": LOST_PEER_SECONDS // 4,
        "TCP_KEEPCNT": 3,
        "TCP_USER_TIMEOUT": LOST_PEER_SECONDS * 1000,
    }
    for name, value in options.items():
        if hasattr(socket, name):  # Linux has them all
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
