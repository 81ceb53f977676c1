"""The cost model of exchanges, from a network's latency and bandwidth and the topology, for ``sparkdl plan-training``.

A message takes a latency and then its bytes over the bandwidth (Hockney, 1994). An exchange takes as long as its
busiest rank, which sends and receives at the same time. The number of that rank's successive messages and bytes follows
from the topology alone (Thakur et al., 2005; Patarasuk and Yuan, 2009).
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

__all__ = [
    "TOPOLOGIES",
    "Link",
    "StepCost",
    "Traffic",
    "exchange",
    "fit_link",
    "gathered",
    "ring",
    "together",
    "two_levels",
]

MESSAGE_BYTES = 8 << 20
"""The largest message of gradients or weights."""


class Traffic(NamedTuple):
    """The successive messages and bytes of the busiest rank of an exchange."""

    messages: float
    bytes: float

    def times(self, count: float) -> "Traffic":
        """The same exchange, so many times."""
        return Traffic(count * self.messages, count * self.bytes)


@dataclass(frozen=True)
class Link:
    """A network between ranks."""

    start: float
    """Seconds until a message begins to arrive."""
    bandwidth: float
    """Bytes a second, in each direction."""

    def seconds(self, traffic: Traffic) -> float:
        """The seconds that an exchange takes."""
        return traffic.messages * self.start + traffic.bytes / self.bandwidth


def fit_link(exchanges: Sequence[tuple[Traffic, float]]) -> Link:
    """The link that fits measured exchanges, each with its seconds, with the least squared relative error.

    Raises ValueError unless the exchanges are of at least two sizes.
    """
    if len({traffic for traffic, _ in exchanges}) < 2:
        raise ValueError("a link has two numbers: exchanges of at least two sizes have to be measured")
    parts = np.array([[traffic.messages / seconds, traffic.bytes / seconds] for traffic, seconds in exchanges])
    start, per_byte = np.linalg.lstsq(parts, np.ones(len(parts)), rcond=None)[0]
    if start < 0:  # too short to be measured
        start, per_byte = 0.0, parts[:, 1].sum() / (parts[:, 1] ** 2).sum()
    return Link(float(start), math.inf if per_byte <= 0 else float(1 / per_byte))


def ring(size: float, ranks: int) -> Traffic:
    """The mean of ``size`` bytes in a ring: each rank sends all but one part to its neighbour, twice."""
    return Traffic(2 * (ranks - 1), 2 * size * (ranks - 1) / ranks)


def butterfly(size: float, ranks: int) -> Traffic:
    """By recursive halving and doubling; ranks beyond a power of two first send their bytes to another rank."""
    rounds = int(math.log2(ranks))
    core = 2**rounds
    guests = 1 if ranks > core else 0
    return Traffic(2 * (rounds + guests), 2 * size * ((core - 1) / core + guests))


def server(size: float, ranks: int) -> Traffic:
    """By one server, which receives and sends the bytes of all ranks."""
    return Traffic(2 * (ranks - 1), 2 * size * (ranks - 1))


def sharded_servers(size: float, ranks: int) -> Traffic:
    """By sharded servers: each rank is the server of its slice."""
    return Traffic(2 * (ranks - 1), 2 * size * (ranks - 1) / ranks)


def two_levels(size: float, hosts: int) -> Traffic:
    """First within hosts, which counts as free, then in a ring from host to host."""
    return ring(size, hosts)


def gathered(size: float, ranks: int) -> Traffic:
    """Messages of ``size`` bytes that cannot be added up: every rank receives those of all ranks."""
    return Traffic(ranks - 1, size * (ranks - 1))


def exchange(size: float, ranks: int, topology: Callable[[float, int], Traffic] = ring) -> Traffic:
    """The exchange of ``size`` bytes in messages of at most :data:`MESSAGE_BYTES`; 0 bytes take no messages."""
    messages, sent = topology(size, ranks)
    return Traffic(messages * math.ceil(size / MESSAGE_BYTES), sent)


def together(exchanges: Iterable[Traffic]) -> Traffic:
    """The traffic of successive exchanges."""
    found = list(exchanges)
    return Traffic(sum(each.messages for each in found), sum(each.bytes for each in found))


TOPOLOGIES: dict[str, Callable[[float, int], Traffic]] = {
    "ring": ring,
    "butterfly": butterfly,
    "server": server,
    "sharded_servers": sharded_servers,
}
"""The topologies in which messages are added up, by their names in ``train.strategy.topology``."""


@dataclass(frozen=True)
class StepCost:
    """The costs of one rank's step with a strategy, without waiting for the network."""

    computing: float
    """Seconds of a step, compression included."""
    payload: float
    """Bytes that a rank gives to an exchange."""
    period: int = 1
    """Steps from one exchange to the next."""
    adds_up: bool = True
    """Whether messages can be added up; if not, every rank receives those of all ranks."""
    any_topology: bool = True
    """Whether this works in any topology, and not only in a ring."""

    def seconds(self, link: Link, ranks: int, topology: Callable[[float, int], Traffic] = ring) -> float:
        """Predicted mean seconds of a step over a period, assuming that computation does not overlap with exchanges."""
        traffic = exchange(self.payload, ranks, topology if self.adds_up else gathered)
        return self.computing + link.seconds(traffic) / self.period
