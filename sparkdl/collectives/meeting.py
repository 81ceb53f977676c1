"""The run's rendezvous server on the driver, as a store of torch.distributed. Runs on ranks."""

import http.client
import time
from collections.abc import Sequence
from datetime import timedelta
from urllib.parse import quote

from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_random
from torch import distributed
from typing_extensions import override

__all__ = ["MeetingStore"]

POLL_SECONDS = 0.01  # between two reads of a key that another rank will set
WAIT_SECONDS = 120.0
REQUEST_SECONDS = 10.0


class MeetingStore(distributed.Store):  # type: ignore[misc]
    """Keys and values that all ranks see. Every request carries the run's token; others are refused."""

    def __init__(self, address: str, token: str) -> None:
        super().__init__()
        self._address, self._token = address, token

    @override
    def set(self, key: str, value: str | bytes) -> None:  # type: ignore[override]
        self._request("PUT", key, value.encode() if isinstance(value, str) else bytes(value))

    @override
    def get(self, key: str) -> bytes:
        self.wait([key])
        return self._request("GET", key) or b""

    @override
    def check(self, keys: Sequence[str]) -> bool:  # type: ignore[override]
        return all(self._request("GET", key) is not None for key in keys)

    @override
    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:  # type: ignore[override]
        deadline = time.monotonic() + (timeout.total_seconds() if timeout else WAIT_SECONDS)
        for key in keys:
            while self._request("GET", key) is None:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"another rank did not connect in time (key {key})")
                time.sleep(POLL_SECONDS)

    # Under a flood of foreign connections, the server drops those that wait longest; requests may safely be repeated.
    @retry(
        retry=retry_if_exception_type(ConnectionResetError),
        wait=wait_random(0, 0.1),
        stop=stop_after_delay(REQUEST_SECONDS),
        reraise=True,
    )
    def _request(self, method: str, key: str, body: bytes | None = None) -> bytes | None:
        """The server's answer; None for a key that is not set."""
        connection = http.client.HTTPConnection(self._address, timeout=REQUEST_SECONDS)
        try:
            connection.request(method, f"/{self._token}/{quote(key, safe='')}", body)
            answer = connection.getresponse()
            if answer.status == http.client.NOT_FOUND:
                return None
            if answer.status != http.client.OK:
                raise ConnectionError(f"the meeting place at {self._address} answers {answer.status} {answer.reason}")
            return answer.read()
        finally:
            connection.close()
