"""The groups of ranks that training speaks to. Runs on ranks."""

from typing import NamedTuple

from sparkdl.collectives import Communicator

__all__ = ["Groups"]


class Groups(NamedTuple):
    """Who does what together. Whatever depends on the number of ranks says which group it means."""

    world: Communicator
    """All ranks of the run: they save together, and hear the driver's orders together."""
    data: Communicator
    """The ranks that each read a shard of the rows, and have a replica of the model or the same part of one."""
    replica: Communicator | None = None
    """The ranks that have one replica together, and see the same rows; None where each rank has one."""

    @classmethod
    def of(cls, world: Communicator, *, ranks_of_replica: int = 1) -> "Groups":
        """Those of a run, in which so many ranks that follow each other have a replica. All ranks call it together."""
        if ranks_of_replica == 1:
            return cls(world, world)
        replica, place = divmod(world.rank, ranks_of_replica)
        return cls(world, data=world.split(place), replica=world.split(replica))

    @property
    def ranks_of_replica(self) -> int:
        """How many ranks have a replica."""
        return self.replica.size if self.replica else 1
