"""The network between ranks that share hosts: which link an exchange takes, and how many exchanges share it."""

from math import ceil
from typing import NamedTuple

from sparkdl.planning.cost import Link, Traffic, exchange

__all__ = ["Links"]


class Links(NamedTuple):
    """The network between the ranks of a cluster, which are numbered host by host."""

    inside: Link
    """Between ranks of a host."""
    between: Link
    """From host to host: that of a host, which all of its ranks share."""
    ranks_of_host: int

    @classmethod
    def of_one_host(cls, link: Link, ranks: int) -> "Links":
        """Of ranks that are all on one host."""
        return cls(link, link, ranks)

    def among(self, ranks: int) -> Link:
        """The link that limits what so many ranks exchange: a ring of ranks leaves each host once."""
        return self.inside if ranks <= self.ranks_of_host else self.between

    def in_replica(self, traffic: Traffic, ranks: int, *, at_a_time: int = 1) -> float:
        """Seconds of what the ranks of a replica exchange. They follow each other, so that it leaves a host once.

        There, so many ranks ``at_a_time`` send as much over one link.
        """
        link = self.among(ranks)
        shared = traffic if link is self.inside else traffic._replace(bytes=at_a_time * traffic.bytes)
        return link.seconds(shared)

    def between_replicas(self, size: float, replicas: int, *, ranks_of_replica: int = 1) -> float:
        """Seconds of the mean of ``size`` bytes of each rank, in rings of those that have the same part of a replica.

        All parts' rings run at a time, and those that leave a host share its link.
        """
        if replicas == 1:
            return 0.0
        if replicas * ranks_of_replica <= self.ranks_of_host:
            return self.inside.seconds(exchange(size, replicas))
        rings = min(self.ranks_of_host, ranks_of_replica)
        # The ranks of a ring on one host follow each other: beyond the first of them they add messages inside it.
        of_host = max(1, self.ranks_of_host // ranks_of_replica)
        hosts = ceil(replicas / of_host)
        messages, sent = exchange(size, replicas)
        crossing = messages * (hosts - 1) / (replicas - 1)
        staying = (messages - crossing) * self.inside.start
        return self.between.seconds(Traffic(crossing, rings * sent)) + staying
