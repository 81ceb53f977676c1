"""Clients that ask a server the same thing, each again as soon as it is answered."""

import asyncio
import time
from dataclasses import dataclass, field
from statistics import quantiles

__all__ = ["Load", "ask_server"]


@dataclass(frozen=True)
class Load:
    """What clients have seen."""

    per_second: float
    """Requests."""
    p50: float
    """Milliseconds."""
    p99: float


@dataclass
class _Client(asyncio.Protocol):
    request: bytes
    end: float
    took: list[tuple[float, float]]
    """When each answer came, and the seconds that it took."""
    done: "asyncio.Future[None]"
    began: float = 0.0
    answer: bytearray = field(default_factory=bytearray)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._ask()

    def _ask(self) -> None:
        self.began = time.perf_counter()
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.answer += data
        head, found, body = bytes(self.answer).partition(b"\r\n\r\n")
        names = dict(line.split(b": ", 1) for line in head.lower().split(b"\r\n")[1:]) if found else {}
        if not found or len(body) < int(names[b"content-length"]):
            return
        now = time.perf_counter()
        self.answer.clear()
        if b" 200 " not in head.partition(b"\r\n")[0]:
            self.done.set_exception(RuntimeError(f"{head!r} {body!r}"))
            return
        self.took.append((now, now - self.began))
        if now < self.end:
            self._ask()
        else:
            self.transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            if error or time.perf_counter() < self.end:
                self.done.set_exception(error or RuntimeError("the server closed a connection"))
            else:
                self.done.set_result(None)


def ask_server(port: int, body: bytes, *, clients: int, seconds: float, warm_up: float) -> Load:
    """Ask for predictions at 127.0.0.1 by connections that stay; what comes in the seconds of ``warm_up`` is left out.

    Runs anywhere. The clients are one thread, and take a core or less. Raises :class:`RuntimeError` for an answer that
    is none.
    """
    lines = ["POST /invocations HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json"]
    request = "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body
    took: list[tuple[float, float]] = []

    async def ask() -> float:
        loop = asyncio.get_running_loop()
        counted = time.perf_counter() + warm_up
        ends = [loop.create_future() for _ in range(clients)]
        for end in ends:
            client = _Client(request, counted + seconds, took, end)
            await loop.create_connection(lambda client=client: client, "127.0.0.1", port)  # type: ignore[misc]
        await asyncio.gather(*ends)
        return counted

    counted = asyncio.run(ask())
    found = [1000 * each for came, each in took if counted <= came < counted + seconds]
    cuts = quantiles(found, n=100)
    return Load(len(found) / seconds, cuts[49], cuts[98])
