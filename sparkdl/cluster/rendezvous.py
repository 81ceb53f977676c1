"""How the ranks of a run find each other: the place of each rank, and a server on the driver for their addresses."""

import asyncio
import hmac
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import psutil

__all__ = [
    "Place",
    "Rendezvous",
    "RendezvousAddress",
    "interface_towards",
    "order_by_host",
    "own_address",
    "place_of",
]

MAX_ENTRY_BYTES = 1 << 20  # Gloo's entries are addresses, about 100 bytes per peer
MAX_HEAD_BYTES = 1 << 13  # of a request, without its body
MAX_STRANGERS = 64  # connections that are not authenticated by the token yet
REQUEST_SECONDS = 10.0  # for a whole request with its answer
LENGTH = "content-length"


@dataclass(frozen=True)
class Place:
    """The place of a rank among the others, in Horovod's terms."""

    rank: int
    size: int
    local_rank: int
    """The rank's number among the ranks of its host."""
    local_size: int
    cross_rank: int
    """The number of its host among the hosts that have a rank with the same local rank."""
    cross_size: int
    host: str
    task: int
    """The number of the Spark task that runs it; without Spark, the rank's own number."""


def place_of(rank: int, hosts: Sequence[str]) -> Place:
    """The place of ``rank``, if rank ``r`` runs on ``hosts[r]``. Every rank computes the same without communication."""
    host = hosts[rank]
    local = [r for r, other in enumerate(hosts) if other == host]
    local_rank = local.index(rank)
    counts = {name: list(hosts).count(name) for name in dict.fromkeys(hosts)}
    peers = [name for name, count in counts.items() if count > local_rank]
    return Place(rank, len(hosts), local_rank, len(local), peers.index(host), len(peers), host, task=rank)


def order_by_host(hosts: Sequence[str]) -> list[int]:
    """The tasks of a stage in the order of their ranks: the tasks of a host are consecutive.

    Spark assigns tasks to executors round-robin. If ranks were numbered like tasks, a ring all-reduce would send every
    message to another host; with this order, only one message per host and step leaves it. Hosts are ordered by their
    first task, so that task 0 always has rank 0. ``hosts[i]`` is the host of task ``i``.
    """
    number = {host: place for place, host in enumerate(dict.fromkeys(hosts))}
    return sorted(range(len(hosts)), key=lambda task: number[hosts[task]])


@dataclass(frozen=True)
class RendezvousAddress:
    """The address at which ranks meet; ``token`` proves that a rank belongs to the run."""

    host: str
    port: int
    token: str

    @property
    def address(self) -> str:
        """The driver's IPv4 address."""
        return socket.gethostbyname(self.host)

    @property
    def interface(self) -> str:
        """The network interface through which this rank reaches the driver."""
        return interface_towards(self.host)

    @property
    def own_address(self) -> str:
        """The IPv4 address of this rank on that interface."""
        return own_address(self.host)


def interface_towards(host: str) -> str:
    """The network interface through which this machine reaches ``host``. Runs on a rank."""
    own = own_address(host)
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address == own for address in addresses):
            return str(name)
    raise OSError(f"no network interface has the address {own}, from which {host} is reached")


def own_address(host: str) -> str:
    """The IPv4 address of this machine on the route to ``host``."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # UDP: picks a route, sends nothing
        return str(probe.getsockname()[0])


class Rendezvous:
    """A small HTTP server at which ranks leave their addresses for each other. Runs on the driver, during a run.

    It answers the requests of Horovod's Gloo. Horovod's own server listens on every interface, answers anybody, and
    starts a thread per connection. This server listens on one address, answers only requests with the token, and keeps
    few connections open, none of them for long. POST requests are answered by ``exchange``, which raises ValueError for
    a body that it does not accept.
    """

    def __init__(
        self, bind_address: str, *, host: str, token: str, exchange: Callable[[bytes], bytes] | None = None
    ) -> None:
        self._token, self._exchange = token.encode(), exchange
        self._entries: dict[str, bytes] = {}
        self._strangers: dict[asyncio.StreamWriter, None] = {}  # connections without a valid token yet, oldest first
        self._ended = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._listener = socket.create_server((bind_address, 0), backlog=128)
        self.address = RendezvousAddress(host, self._listener.getsockname()[1], token)
        self._thread = threading.Thread(target=self._run, name="sparkdl-rendezvous", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:  # cancels the tasks of open connections
            runner.run(self._serve())

    async def _serve(self) -> None:
        async with await asyncio.start_server(self._connected, sock=self._listener, limit=MAX_HEAD_BYTES):
            await self._ended.wait()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._strangers[writer] = None
        if len(self._strangers) > MAX_STRANGERS:
            next(iter(self._strangers)).transport.abort()
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                status, body = await self._answer(reader, writer)
                writer.write(f"HTTP/1.1 {status} \r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode())
                writer.write(body)
                await writer.drain()
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError):
            pass  # too slow, too long, cut off, or not HTTP: the client has to connect again
        finally:
            self._strangers.pop(writer, None)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[int, bytes]:
        """Status and body for a request to ``/token:0/scope/key``. Raises ValueError if the request is not HTTP."""
        request, *headers = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = request.split(" ")
        token, _, key = path.removeprefix("/").partition("/")
        if not hmac.compare_digest(token.partition(":")[0].encode("latin-1"), self._token):
            return 403, b""
        self._strangers.pop(writer, None)
        lengths = [value for name, _, value in (header.partition(":") for header in headers) if name.lower() == LENGTH]
        length = int(lengths[0]) if lengths else 0
        if not 0 <= length <= MAX_ENTRY_BYTES:
            return 413, b""
        if method == "PUT":
            self._entries[key] = await reader.readexactly(length)
        elif method == "POST" and self._exchange:
            return 200, self._exchange(await reader.readexactly(length))
        elif method == "DELETE":
            self._entries.pop(key, None)
        elif method == "GET":
            return (200, self._entries[key]) if key in self._entries else (404, b"")
        else:
            return 405, b""
        return 200, b""
