"""The groups of ranks that training speaks to. Runs on ranks."""

from typing import NamedTuple

from sparkdl.collectives import Communicator

__all__ = ["Groups"]


class Groups(NamedTuple):
    """Who does what together. Whatever depends on the number of ranks says which group it means."""

    world: Communicator
    """All ranks of the run: they save together, and hear the driver's orders together."""
    data: Communicator
    """The ranks that each read a shard of the rows, and have a replica of the model."""
