"""The groups of ranks in training. Runs on ranks."""

from typing import NamedTuple

from sparkdl.collectives import Communicator

__all__ = ["Groups"]


class Groups(NamedTuple):
    """The groups of ranks by purpose. Code that depends on a number of ranks names the group that it means."""

    world: Communicator
    """All ranks of the run: they save checkpoints and obey the driver's orders together."""
    data: Communicator
    """The ranks that each read another shard of the rows, and have a replica of the model or the same part of one."""
    replica: Communicator | None = None
    """The ranks that share a replica and see the same rows; None if each rank has a replica."""

    @classmethod
    def of(cls, world: Communicator, *, ranks_of_replica: int = 1) -> "Groups":
        """The groups of a run where ``ranks_of_replica`` consecutive ranks share a replica. All ranks call it."""
        if ranks_of_replica == 1:
            return cls(world, world)
        replica, place = divmod(world.rank, ranks_of_replica)
        return cls(world, data=world.split(place), replica=world.split(replica))

    @property
    def ranks_of_replica(self) -> int:
        """The number of ranks that share a replica."""
        return self.replica.size if self.replica else 1
