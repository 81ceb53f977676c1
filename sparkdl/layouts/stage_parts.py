"""Who has what of a network that is cut into the stages of a pipeline."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from sparkdl.layouts.regions import Regions

__all__ = ["StageParts"]


class StageParts(NamedTuple):
    """Each rank of a replica has all of some parameters, and nothing of others; ranks are numbered by replica."""

    shapes: Mapping[str, tuple[int, ...]]
    """Of all parameters of the whole network."""
    homes: Mapping[str, tuple[int, ...]]
    """The ranks of a replica that have them: several where stages share a parameter."""
    ranks: int
    """That have one replica together."""

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
        """As plain values."""
        return {
            "shapes": {name: list(shape) for name, shape in self.shapes.items()},
            "homes": {name: list(homes) for name, homes in self.homes.items()},
            "ranks": self.ranks,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "StageParts":
        """The same again."""
        return cls(
            {name: tuple(shape) for name, shape in state["shapes"].items()},
            {name: tuple(homes) for name, homes in state["homes"].items()},
            state["ranks"],
        )
