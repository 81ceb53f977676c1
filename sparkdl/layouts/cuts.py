"""Which rank has which part of a network whose layers are cut."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from sparkdl.layouts.regions import Region, Regions
from sparkdl.layouts.tensor_plan import TensorPlan

__all__ = ["Cuts", "dealt"]


class Cuts(NamedTuple):
    """Which rank has which part of a network that a plan cuts; ranks are numbered replica by replica."""

    shapes: Mapping[str, tuple[int, ...]]
    """The shapes of all parameters in the whole network."""
    dims: Mapping[str, tuple[int, int]]
    """By parameter that is cut: the dimension, and the number of units along it."""
    ranks: int
    """The number of ranks that share a replica."""

    def regions(self, rank: int) -> Regions:
        """See :class:`~sparkdl.layouts.regions.Parting`."""
        found = {}
        for name, (dim, units) in self.dims.items():
            size = self.shapes[name][dim]
            each, (first, last) = size // units, dealt(units, rank % self.ranks, self.ranks)
            found[name] = Region(dim, torch.arange(first * each, last * each))
        return found

    def kept(self, rank: int, own: Mapping[str, Any]) -> dict[str, Any]:
        """See :class:`~sparkdl.layouts.regions.Parting`."""
        return {**own["model"], **own["optimizer"]}

    def state(self) -> dict[str, Any]:
        """The cuts as plain values."""
        return {
            "shapes": {name: list(shape) for name, shape in self.shapes.items()},
            "dims": {name: list(how) for name, how in self.dims.items()},
            "ranks": self.ranks,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Cuts":
        """The cuts from their :meth:`state`."""
        return cls(
            {name: tuple(shape) for name, shape in state["shapes"].items()},
            {name: (dim, units) for name, (dim, units) in state["dims"].items()},
            state["ranks"],
        )

    @classmethod
    def of(cls, model: nn.Module, plan: TensorPlan) -> "Cuts":
        """The cuts of a plan in a whole network."""
        shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters(remove_duplicate=False)}
        dims: dict[str, tuple[int, int]] = {}
        for block in plan.blocks:
            for column in block.columns:
                dims |= {f"{column}.weight": (0, block.units), f"{column}.bias": (0, block.units)}
            dims[f"{block.row}.weight"] = 1, block.units
        dims |= {f"{name}.weight": (0, shapes[f"{name}.weight"][0]) for name in plan.embeddings}
        return cls(shapes, {name: how for name, how in dims.items() if name in shapes}, plan.ranks)


def dealt(units: int, rank: int, ranks: int) -> tuple[int, int]:
    """A rank's range of units (first, one past the last); the first ranks have one more if the division is uneven."""
    each, more = divmod(units, ranks)
    first = rank * each + min(rank, more)
    return first, first + each + (rank < more)
