"""Where the parts of a model lie in the whole, and how new parts are made from other parts.

A checkpoint of a split model consists of the ranks' parts. A rank that resumes from it with another number of ranks, in
another layout or with the whole model reads one part after another, and takes from each what belongs to its own part.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

import torch

__all__ = [
    "ModelPart",
    "Parting",
    "Region",
    "Regions",
    "Slices",
    "base_name",
    "fill",
    "is_moment",
    "moment_name",
    "room_for",
    "weights_in",
]

COPIED_BYTES = 8 << 20
"""Bytes of a tensor that are copied at a time."""
OF = "@"
"""Separates, in a moment's name, the parameter's name and the kind of moment."""


class Region(NamedTuple):
    """A part of a tensor: some indices of one dimension."""

    dim: int
    indices: torch.Tensor
    """int64, each index once, in the part's order."""


Regions = Mapping[str, Region]
"""The regions of a part, by parameter; parameters without a region are whole."""
ModelPart = tuple[Regions, Mapping[str, Any]]
"""A part: its regions, and its tensors by name, with the optimizer's moments (:func:`moment_name`)."""


class Parting(Protocol):
    """Which rank has which part of a model, as described in a checkpoint."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shapes, in the whole model, of the parameters that are split."""

    @property
    def ranks(self) -> int:
        """The number of ranks that share a replica; the next ranks share the next one."""

    def regions(self, rank: int) -> Regions:
        """Where the part of a rank lies."""

    def kept(self, rank: int, own: Mapping[str, Any]) -> dict[str, Any]:
        """The tensors of a rank's part, from its shard's content."""


class Slices(NamedTuple):
    """Each rank has a range of rows of each parameter, as with PyTorch's ``Shard(0)``."""

    shapes: Mapping[str, tuple[int, ...]]
    ranks: int

    def regions(self, rank: int) -> Regions:
        """See :class:`Parting`."""
        return {name: Region(0, self._rows(shape[0], rank)) for name, shape in self.shapes.items()}

    def kept(self, rank: int, own: Mapping[str, Any]) -> dict[str, Any]:
        """See :class:`Parting`."""
        return {**own["model"], **own["optimizer"]}

    def state(self) -> dict[str, Any]:
        """The slices as plain values."""
        return {"shapes": {name: list(shape) for name, shape in self.shapes.items()}, "ranks": self.ranks}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Slices":
        """The slices from their :meth:`state`."""
        return cls({name: tuple(shape) for name, shape in state["shapes"].items()}, state["ranks"])

    def _rows(self, rows: int, rank: int) -> torch.Tensor:
        longest = -(-rows // self.ranks)
        return torch.arange(min(rank * longest, rows), min((rank + 1) * longest, rows))


def moment_name(parameter: str, kind: str) -> str:
    """The name, in a piece, of one kind of a parameter's moments, such as ``exp_avg``."""
    return f"{parameter}{OF}{kind}"


def is_moment(name: str) -> bool:
    """Whether a tensor of a piece, by its name, belongs to the optimizer's state."""
    return OF in name


def weights_in(part: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The tensors of a part, or of the whole, without moments."""
    return {name: value for name, value in part.items() if not is_moment(name)}


def base_name(name: str) -> str:
    """The name of the parameter that a tensor of a piece belongs to."""
    return name.partition(OF)[0]


def room_for(
    regions: Regions, shapes: Mapping[str, tuple[int, ...]], like: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Uninitialised parts of parameters of these ``shapes``, with the types and devices of ``like``."""
    parts = {}
    for name, whole in shapes.items():
        shape = list(whole)
        if region := regions.get(name):
            shape[region.dim] = len(region.indices)
        parts[name] = like[name].new_empty(shape)
    return parts


@torch.no_grad()
def fill(
    parts: Mapping[str, torch.Tensor],
    regions: Regions,
    shapes: Mapping[str, tuple[int, ...]],
    pieces: Iterable[ModelPart],
) -> dict[str, torch.Tensor]:
    """Overwrite parts, at some regions of parameters of these ``shapes``, with the values in pieces.

    Pieces are read one after another, and together have every element. Returns their tensors that are not split: the
    mean over pieces of floating-point tensors, and the first piece's value of others.
    """
    rest: dict[str, torch.Tensor] = {}
    types: dict[str, torch.dtype] = {}
    count = 0
    for theirs, piece in pieces:
        count += 1
        for name, value in piece.items():
            base = base_name(name)
            if name in parts:
                _copy(value, theirs.get(base), parts[name], regions.get(base), shapes[base])
            elif is_moment(name) or base in shapes:
                continue  # of a parameter that is not in this part
            elif value.is_floating_point():
                rest[name], types[name] = rest.get(name, 0) + value.double(), value.dtype
            else:
                rest.setdefault(name, value)
        del piece, value  # before the next one is read
    return {name: (value / count).to(types[name]) if name in types else value for name, value in rest.items()}


def _copy(
    source: torch.Tensor, theirs: Region | None, target: torch.Tensor, ours: Region | None, shape: tuple[int, ...]
) -> None:
    """Copy the elements that two parts of a tensor have in common."""
    either = ours or theirs
    if either is None:
        target.copy_(source)
        return
    if ours and theirs and ours.dim != theirs.dim:  # each is whole along the other's dimension
        common = source.index_select(ours.dim, ours.indices.to(source.device))
        target.index_copy_(theirs.dim, theirs.indices.to(target.device), common.to(target))
        return
    dim, everything = either.dim, torch.arange(shape[either.dim])
    own, given = ours.indices if ours else everything, theirs.indices if theirs else everything
    found = torch.full((shape[dim],), -1)
    found[given] = torch.arange(len(given))
    here = torch.nonzero(found[own] >= 0).flatten()
    _copy_indices(source, found[own[here]], target, here, dim=dim)


def _copy_indices(
    source: torch.Tensor, theirs: torch.Tensor, target: torch.Tensor, ours: torch.Tensor, *, dim: int
) -> None:
    """Copy some indices of a dimension to other indices of another tensor, some rows at a time."""
    rows = max(1, COPIED_BYTES // max(1, source[:1].nbytes))
    if dim == 0:
        for some, indices in zip(theirs.split(rows), ours.split(rows), strict=True):
            target.index_copy_(0, indices.to(target.device), source[some.to(source.device)].to(target))
        return
    for begin in range(0, len(source), rows):
        block = slice(begin, begin + rows)
        values = source[block].index_select(dim, theirs.to(source.device))
        target[block].index_copy_(dim, ours.to(target.device), values.to(target))
