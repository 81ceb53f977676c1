"""How the ranks of a run find each other: where each one is, and the server on the driver where Gloo's peers meet."""

import hmac
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import psutil
from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

__all__ = ["Place", "Rendezvous", "RendezvousAddress", "interface_towards", "place_of"]

GLOO_TIMEOUT_SECONDS = 120  # a rank may import for a minute before it meets the others; Horovod allows 30 s
MAX_ENTRY_BYTES = 1 << 20  # Gloo's entries are addresses, about 100 bytes per peer


@dataclass(frozen=True)
class Place:
    """Where a rank is among the others, in Horovod's words."""

    rank: int
    size: int
    local_rank: int
    """Its number among the ranks of its host."""
    local_size: int
    cross_rank: int
    """Its host's number among the hosts that have a rank with the same local rank."""
    cross_size: int
    host: str


def place_of(rank: int, hosts: Sequence[str]) -> Place:
    """The place of ``rank`` when ``hosts[r]`` is where rank ``r`` runs. Every rank computes the same; nobody asks."""
    host = hosts[rank]
    local = [r for r, other in enumerate(hosts) if other == host]
    local_rank = local.index(rank)
    counts = {name: list(hosts).count(name) for name in dict.fromkeys(hosts)}
    peers = [name for name, count in counts.items() if count > local_rank]
    return Place(rank, len(hosts), local_rank, len(local), peers.index(host), len(peers), host)


@dataclass(frozen=True)
class RendezvousAddress:
    """What a rank must know to meet the others; ``token`` proves that it belongs to the run."""

    host: str
    port: int
    token: str

    def environment(self, place: Place) -> dict[str, str]:
        """The environment variables that ``hvd.init()`` reads."""
        return {
            "HOROVOD_RANK": str(place.rank),
            "HOROVOD_SIZE": str(place.size),
            "HOROVOD_LOCAL_RANK": str(place.local_rank),
            "HOROVOD_LOCAL_SIZE": str(place.local_size),
            "HOROVOD_CROSS_RANK": str(place.cross_rank),
            "HOROVOD_CROSS_SIZE": str(place.cross_size),
            "HOROVOD_HOSTNAME": place.host,
            # Horovod requests http://ADDR:PORT/scope/key; with a path in ADDR every request carries the token,
            # and the PORT that Horovod adds becomes a part of the path that the server ignores.
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": f"{socket.gethostbyname(self.host)}:{self.port}/{self.token}",
            "HOROVOD_GLOO_RENDEZVOUS_PORT": "0",
            "HOROVOD_GLOO_IFACE": interface_towards(self.host),
            "HOROVOD_GLOO_TIMEOUT_SECONDS": str(GLOO_TIMEOUT_SECONDS),
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            # With cached responses each rank decides by itself which gradients to fuse; ranks that decide differently
            # crash in Gloo ("op.preamble.length <= op.nbytes"). Without, rank 0 decides for all, at the same speed.
            "HOROVOD_CACHE_CAPACITY": "0",
            # Tensors that were sent as one message are never joined by others that happen to be ready: the order of a
            # sum over three or more ranks would otherwise depend on timing.
            "HOROVOD_DISABLE_GROUP_FUSION": "1",
        }


def interface_towards(host: str) -> str:
    """The network interface through which this machine reaches ``host``. Runs on a rank."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # UDP: picks a route, sends nothing
        own_address = probe.getsockname()[0]
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address == own_address for address in addresses):
            return str(name)
    raise OSError(f"no network interface has the address {own_address}, from which {host} is reached")


class Rendezvous:
    """Horovod's rendezvous server, open to the ranks of one run only. Runs on the driver; close it after the run.

    Horovod's own ``RendezvousServer`` listens on every interface and answers anybody; this one listens on one address
    and answers requests that carry the token.
    """

    def __init__(self, bind_address: str, *, host: str, token: str) -> None:
        handler = type("Handler", (_Handler,), {"token": token})
        self._server: Any = RendezvousHTTPServer((bind_address, 0), handler, 0)
        self._server.daemon_threads = True
        self._server.init([])
        self.address = RendezvousAddress(host, self._server.server_address[1], token)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.01,), name="sparkdl-rendezvous", daemon=True
        )
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(RendezvousHandler):  # type: ignore[misc]
    """Lets requests of the form ``/token:0/scope/key`` through to Horovod's handler as ``/scope/key``."""

    token: str
    path: str

    def parse_request(self) -> bool:
        if not super().parse_request():
            return False
        first, _, rest = self.path.removeprefix("/").partition("/")
        if not hmac.compare_digest(first.partition(":")[0].encode(), self.token.encode()):
            self.send_error(403)
            return False
        length = self.headers.get("Content-Length", "0")
        if not length.isdigit() or int(length) > MAX_ENTRY_BYTES:
            self.send_error(413)
            return False
        self.path = f"/{rest}"
        return True
