"""Which rank has which parameters of a network that is cut into pipeline stages."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from sparkdl.layouts.regions import Regions

__all__ = ["StageParts"]


class StageParts(NamedTuple):
    """Each rank of a replica has some parameters whole, and no others; ranks are numbered replica by replica."""

    shapes: Mapping[str, tuple[int, ...]]
    """The shapes of all parameters of the whole network."""
    homes: Mapping[str, tuple[int, ...]]
    """By parameter: the ranks of a replica that have it; several if stages share the parameter."""
    ranks: int
    """The number of ranks that share a replica."""

    def own(self, rank: int) -> set[str]:
        """The names of the parameters that a rank has."""
        return {name for name, homes in self.homes.items() if rank % self.ranks in homes}

    def regions(self, rank: int) -> Regions:
        """See :class:`~sparkdl.layouts.regions.Parting`."""
        return {}

    def kept(self, rank: int, own: Mapping[str, Any]) -> dict[str, Any]:
        """See :class:`~sparkdl.layouts.regions.Parting`."""
        return {**own["model"], **own["optimizer"]}

    def state(self) -> dict[str, Any]:
        """The parts as plain values."""
        return {
            "shapes": {name: list(shape) for name, shape in self.shapes.items()},
            "homes": {name: list(homes) for name, homes in self.homes.items()},
            "ranks": self.ranks,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "StageParts":
        """The parts from their :meth:`state`."""
        return cls(
            {name: tuple(shape) for name, shape in state["shapes"].items()},
            {name: tuple(homes) for name, homes in state["homes"].items()},
            state["ranks"],
        )
