"""The format of messages between ranks and driver: authenticated frames of JSON, never pickled.

A frame is the payload's length (4 bytes, big-endian), an HMAC-SHA256 over context, sequence number (8 bytes) and
payload with the run's secret as key, and the payload: the JSON of ``[topic, body]``. The context is the direction and a
nonce that the receiver has chosen, so that frames recorded elsewhere or from the other direction are rejected.
"""

import hashlib
import hmac
import json
import struct
from collections.abc import Iterator
from typing import Any

__all__ = ["MAX_PAYLOAD_BYTES", "NONCE_BYTES", "TO_DRIVER", "TO_RANK", "FrameReader", "FrameWriter"]

MAX_PAYLOAD_BYTES = 1 << 20
NONCE_BYTES = 16
MAC_BYTES = 32
HEADER_BYTES = 4 + MAC_BYTES
TO_DRIVER, TO_RANK = b"to driver", b"to rank"  # the directions


class FrameWriter:
    """Packs the frames of one direction of one connection, in order."""

    def __init__(self, secret: bytes, direction: bytes, nonce: bytes, *, max_bytes: int = MAX_PAYLOAD_BYTES) -> None:
        self._secret, self._context, self._sequence, self._max_bytes = secret, direction + nonce, 0, max_bytes

    def pack(self, topic: str, body: dict[str, Any]) -> bytes:
        """The next frame. Raises TypeError for values that JSON cannot hold, and ValueError if it is too long."""
        payload = json.dumps([topic, body]).encode()
        if len(payload) > self._max_bytes:
            raise ValueError(f"a message may have at most {self._max_bytes:,} bytes as JSON, but has {len(payload):,}")
        mac = _mac(self._secret, self._context, self._sequence, payload)
        self._sequence += 1
        return struct.pack(">I", len(payload)) + mac + payload


class FrameReader:
    """Parses the frames of one direction of one connection."""

    def __init__(self, secret: bytes, direction: bytes, nonce: bytes) -> None:
        self._secret, self._context, self._sequence = secret, direction + nonce, 0
        self._buffer = bytearray()
        self.max_bytes = MAX_PAYLOAD_BYTES
        """The longest payload that is accepted at the moment."""

    def feed(self, data: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
        """Topic and body of every frame that is complete. Raises ValueError if one is too long or not authentic."""
        self._buffer += data
        while len(self._buffer) >= HEADER_BYTES:
            (length,) = struct.unpack_from(">I", self._buffer)
            if length > self.max_bytes:
                raise ValueError("the frame is too long")
            end = HEADER_BYTES + length
            if len(self._buffer) < end:
                return
            mac, payload = bytes(self._buffer[4:HEADER_BYTES]), bytes(self._buffer[HEADER_BYTES:end])
            del self._buffer[:end]
            if not hmac.compare_digest(mac, _mac(self._secret, self._context, self._sequence, payload)):
                raise ValueError("the frame is not authentic")
            self._sequence += 1
            yield _parse(payload)


def _parse(payload: bytes) -> tuple[str, dict[str, Any]]:
    try:
        message = json.loads(payload)
    except RecursionError:
        raise ValueError("the frame is nested too deeply") from None
    match message:
        case [str() as topic, dict() as body]:
            return topic, body
    raise ValueError("the frame does not hold a topic and a body")


def _mac(secret: bytes, context: bytes, sequence: int, payload: bytes) -> bytes:
    return hmac.digest(secret, context + struct.pack(">Q", sequence) + payload, hashlib.sha256)
