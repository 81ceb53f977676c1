"""What an exchange costs, from two numbers of the network and the topology: the model behind ``sparkdl plan-training``.

A message takes some time to start, and then as long as its bytes (Hockney, 1994). An exchange takes as long as its
busiest rank, which sends and receives at once. How many messages that rank has, one after another, and how many bytes,
follows from the topology alone (Thakur et al., 2005; Patarasuk and Yuan, 2009).
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
"""Of gradients and weights, so many at most travel together."""


class Traffic(NamedTuple):
    """What the busiest rank of an exchange sends or receives, one after another."""

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
        """How long an exchange takes."""
        return traffic.messages * self.start + traffic.bytes / self.bandwidth


def fit_link(exchanges: Sequence[tuple[Traffic, float]]) -> Link:
    """The link on which exchanges took so many seconds, with the least squared relative error.

    Raises ValueError unless the exchanges are of at least two sizes.
    """
    if len({traffic for traffic, _ in exchanges}) < 2:
        raise ValueError("a link has two numbers: exchanges of at least two sizes have to be measured")
    parts = np.array([[traffic.messages / seconds, traffic.bytes / seconds] for traffic, seconds in exchanges])
    start, per_byte = np.linalg.lstsq(parts, np.ones(len(parts)), rcond=None)[0]
    if start < 0:  # too short to be seen beside the bytes
        start, per_byte = 0.0, parts[:, 1].sum() / (parts[:, 1] ** 2).sum()
    return Link(float(start), math.inf if per_byte <= 0 else float(1 / per_byte))


def ring(size: float, ranks: int) -> Traffic:
    """The mean of ``size`` bytes in a ring: each rank sends all but one part to its neighbour, twice."""
    return Traffic(2 * (ranks - 1), 2 * size * (ranks - 1) / ranks)


def butterfly(size: float, ranks: int) -> Traffic:
    """By recursive halving and doubling; ranks beyond a power of two leave their bytes with another one first."""
    rounds = int(math.log2(ranks))
    core = 2**rounds
    guests = 1 if ranks > core else 0
    return Traffic(2 * (rounds + guests), 2 * size * ((core - 1) / core + guests))


def server(size: float, ranks: int) -> Traffic:
    """By one server, which receives and sends everybody's bytes."""
    return Traffic(2 * (ranks - 1), 2 * size * (ranks - 1))


def sharded_servers(size: float, ranks: int) -> Traffic:
    """Where each rank is the server of its part."""
    return Traffic(2 * (ranks - 1), 2 * size * (ranks - 1) / ranks)


def two_levels(size: float, hosts: int) -> Traffic:
    """Inside hosts first, whose memory counts as free, then in a ring from host to host."""
    return ring(size, hosts)


def gathered(size: float, ranks: int) -> Traffic:
    """Messages of ``size`` bytes that cannot be added up on the way: every rank receives everybody's."""
    return Traffic(ranks - 1, size * (ranks - 1))


def exchange(size: float, ranks: int, topology: Callable[[float, int], Traffic] = ring) -> Traffic:
    """The exchange of ``size`` bytes, of which :data:`MESSAGE_BYTES` at most travel together; nothing takes none."""
    messages, sent = topology(size, ranks)
    return Traffic(messages * math.ceil(size / MESSAGE_BYTES), sent)


def together(exchanges: Iterable[Traffic]) -> Traffic:
    """Exchanges one after another."""
    found = list(exchanges)
    return Traffic(sum(each.messages for each in found), sum(each.bytes for each in found))


TOPOLOGIES: dict[str, Callable[[float, int], Traffic]] = {
    "ring": ring,
    "butterfly": butterfly,
    "server": server,
    "sharded_servers": sharded_servers,
}
"""What can add up on the way, by its name in ``train.strategy.topology``."""


@dataclass(frozen=True)
class StepCost:
    """What a rank does in a step of one strategy, apart from waiting for the network."""

    computing: float
    """Seconds of a step, compression included."""
    payload: float
    """Bytes that it hands over in an exchange."""
    period: int = 1
    """Steps from one exchange to the next."""
    adds_up: bool = True
    """Whether it can be added up on the way; else every rank receives everybody's."""
    any_topology: bool = True
    """Whether that can be in any topology, and not only in a ring."""

    def seconds(self, link: Link, ranks: int, topology: Callable[[float, int], Traffic] = ring) -> float:
        """Predicted seconds of a step, on average over a period. What computing hides of an exchange is not known."""
        traffic = exchange(self.payload, ranks, topology if self.adds_up else gathered)
        return self.computing + link.seconds(traffic) / self.period
