"""A Unix socket for the calls of tasks on a server's own host and of the same user, which need no encryption.

It is in a folder that only this user can enter, and whose name is computed from the run's token.
"""

import hashlib
import hmac
import os
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import flight

__all__ = ["UnixSocket", "address_towards", "find_socket", "open_socket"]

LONGEST_PATH = 100  # bytes; the system's limit is 107
PREFIX = "sparkdl-socket-"
OPENING_SECONDS = 60.0  # at most, between a server's creation of the folder and its listening there


class UnixSocket(flight.FlightServerBase):  # type: ignore[misc]
    """Forwards calls to its server."""

    def __init__(self, server: flight.FlightServerBase, path: Path, middleware: Mapping[str, Any]) -> None:
        super().__init__(f"grpc+unix://{path}", middleware=middleware)
        self._server, self._folder = server, path.parent

    def do_action(self, context: Any, action: Any) -> Any:
        """As the server does."""
        return self._server.do_action(context, action)

    def do_get(self, context: Any, ticket: Any) -> Any:
        """As the server does."""
        return self._server.do_get(context, ticket)

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """As the server does."""
        self._server.do_put(context, descriptor, reader, writer)

    def shutdown(self) -> None:
        """Close the socket and remove its folder."""
        super().shutdown()
        shutil.rmtree(self._folder, ignore_errors=True)


def open_socket(
    server: flight.FlightServerBase, address: str, token: str, middleware: Mapping[str, Any]
) -> UnixSocket | None:
    """Open a Unix socket for clients that know the server's address and the token; None if that is not possible.

    Removes the sockets of servers of this user that were killed.
    """
    _sweep()
    path = _path(address, token)
    if len(os.fsencode(path)) > LONGEST_PATH:
        return None
    try:
        path.parent.mkdir(mode=0o700)
        return UnixSocket(server, path, middleware)
    except (OSError, pa.ArrowException):  # a full disk, one without sockets, or a name that Flight cannot read
        shutil.rmtree(path.parent, ignore_errors=True)
        return None  # TLS works too, only slower


def find_socket(address: str, token: str) -> Path | None:
    """The Unix socket of the server at an address, if it is on this host and a server of this user answers there."""
    path = _path(address, token)
    try:
        folder = path.parent.stat()
    except OSError:
        return None
    if folder.st_uid != os.geteuid() or stat.S_IMODE(folder.st_mode) != 0o700:
        return None  # of another user, who may want to read the token
    if address_towards(address) != address.rpartition(":")[0]:
        return None  # hosts in separate networks may share the folder
    return path if _is_open(path) else None


def address_towards(address: str) -> str:
    """The address of this host on the route to ``address`` (host and port)."""
    host, _, port = address.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, int(port)))  # UDP: picks a route, sends nothing
        return str(probe.getsockname()[0])


def _sweep() -> None:
    """Remove the folders of sockets on which no process listens any more."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # its server may remove it meanwhile
            made = folder.lstat()  # not of a link's target: a link may be a trap
            old = time.time() - made.st_mtime > OPENING_SECONDS
            if made.st_uid == os.geteuid() and old and not _is_open(folder / "server"):
                shutil.rmtree(folder)


def _is_open(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def _path(address: str, token: str) -> Path:
    name = hmac.new(token.encode(), address.encode(), hashlib.sha256).hexdigest()[:32]
    return Path(tempfile.gettempdir(), f"{PREFIX}{name}", "server")
