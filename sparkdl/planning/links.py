"""The network between ranks on several hosts: which link an exchange uses, and how many exchanges share it."""

from math import ceil
from typing import NamedTuple

from sparkdl.planning.cost import Link, Traffic, exchange

__all__ = ["Links"]


class Links(NamedTuple):
    """The links between the ranks of a cluster; ranks are numbered host by host."""

    inside: Link
    """Between ranks of a host."""
    between: Link
    """From host to host: a host's link, which all its ranks share."""
    ranks_of_host: int

    @classmethod
    def of_one_host(cls, link: Link, ranks: int) -> "Links":
        """The links of ranks that are all on one host."""
        return cls(link, link, ranks)

    def among(self, ranks: int) -> Link:
        """The link that limits an exchange of ``ranks`` ranks: a ring leaves each host once."""
        return self.inside if ranks <= self.ranks_of_host else self.between

    def in_replica(self, traffic: Traffic, ranks: int, *, at_a_time: int = 1) -> float:
        """Seconds of an exchange within a replica, whose ranks have consecutive numbers, so that it leaves a host once.

        From host to host, ``at_a_time`` ranks send the same amount over one link at the same time.
        """
        link = self.among(ranks)
        shared = traffic if link is self.inside else traffic._replace(bytes=at_a_time * traffic.bytes)
        return link.seconds(shared)

    def between_replicas(self, size: float, replicas: int, *, ranks_of_replica: int = 1) -> float:
        """Seconds of a mean of ``size`` bytes per rank, over rings of the ranks that have the same part of a replica.

        The rings of all parts run at the same time, and those that leave a host share its link.
        """
        if replicas == 1:
            return 0.0
        if replicas * ranks_of_replica <= self.ranks_of_host:
            return self.inside.seconds(exchange(size, replicas))
        rings = min(self.ranks_of_host, ranks_of_replica)
        # Ranks of a ring on one host are consecutive: all but the first add messages within the host.
        of_host = max(1, self.ranks_of_host // ranks_of_replica)
        hosts = ceil(replicas / of_host)
        messages, sent = exchange(size, replicas)
        crossing = messages * (hosts - 1) / (replicas - 1)
        staying = (messages - crossing) * self.inside.start
        return self.between.seconds(Traffic(crossing, rings * sent)) + staying
