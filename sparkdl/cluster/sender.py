"""A rank's end of the channel: sends messages to the driver, and receives its requests to stop. Runs on a rank."""

import os
import secrets
import socket
import threading
import time
from typing import Any

from sparkdl.cluster.frames import NONCE_BYTES, TO_DRIVER, TO_RANK, FrameReader, FrameWriter
from sparkdl.cluster.own_executor import end_stopped, own_executor

__all__ = ["Sender", "notice_lost_peers"]

CONNECT_SECONDS = 30.0  # how long a rank tries to connect
ATTEMPT_SECONDS = 5.0  # how long one attempt may take until driver and rank have authenticated each other
LOST_PEER_SECONDS = 20  # after how long a host that vanished is noticed


class Sender:
    """The connection of one rank to the driver. If the driver ends it before :meth:`close`, this process ends at once.

    An executor that is stopped is killed with it. Driver and rank prove to each other that they hold the run's secret:
    the driver begins with a nonce; the rank's ``hello`` authenticates it and contains a second nonce; the driver's
    ``welcome`` authenticates that.
    """

    def __init__(
        self, address: tuple[str, int], *, secret: bytes, patience: float = CONNECT_SECONDS, **hello: Any
    ) -> None:
        self.stop_requested = False
        """Whether the driver has asked this rank to stop."""
        self._lock = threading.Lock()
        self._closing = False
        deadline = time.monotonic() + patience
        while True:
            try:
                self._connect(address, secret, hello)
                break
            except (OSError, ValueError) as error:  # unauthenticated connections may have displaced this one
                if time.monotonic() > deadline or isinstance(error, ConnectionRefusedError):
                    raise ConnectionError(
                        f"rank {hello['rank']} cannot reach the driver at {address[0]}:{address[1]} ({error}); set"
                        " spark.driver.host to an address of the driver that executors can reach"
                    ) from None
                time.sleep(0.05)
        threading.Thread(target=self._listen, name="sparkdl-channel", daemon=True).start()

    def send(self, topic: str, body: dict[str, Any]) -> None:
        """Send one frame. Raises TypeError for values that JSON cannot hold, and ValueError if it is too long."""
        with self._lock:
            self._socket.sendall(self._writer.pack(topic, body))

    def close(self) -> None:
        """Send ``bye``, so that the driver knows that this rank has sent everything."""
        self._closing = True
        try:
            self.send("bye", {})
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the driver has already closed the connection
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
        """Handle received frames, and return their topics. Raises OSError at the end of the connection."""
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
                os._exit(1)  # the main thread may wait in native code for ranks that have already ended


def notice_lost_peers(connection: socket.socket) -> None:
    """Let a connection fail if the other host has vanished, even while nothing is sent."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {
        "TCP_KEEPIDLE": LOST_PEER_SECONDS // 4,
        "TCP_KEEPINTVL": LOST_PEER_SECONDS // 4,
        "TCP_KEEPCNT": 3,
        "TCP_USER_TIMEOUT": LOST_PEER_SECONDS * 1000,
    }
    for name, value in options.items():
        if hasattr(socket, name):  # Linux has all of them
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
