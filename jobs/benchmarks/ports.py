"""Ports for servers that are about to start."""

import secrets
import socket
from contextlib import suppress

__all__ = ["free_ports"]

RANGE = range(20_000, 32_000)
"""Below those that systems give to connections: one of these would take the port before the server does, some day."""


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Ports at which nobody listens, and not the same one twice."""
    found: set[int] = set()
    while len(found) < count:
        port = RANGE[secrets.randbelow(len(RANGE))]
        with suppress(OSError), socket.create_server((host, port)):
            found.add(port)
    return list(found)
