"""Where the parts of a model lie in the whole, and how parts are made of other parts.

A checkpoint of a model that ranks have in parts is the parts. Whoever goes on from it with another number of ranks, in
another layout or with the whole looks at one part after the other, and takes of each what belongs to its own.
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
"""Of a tensor that are copied at a time: a file is written in its order."""
OF = "@"
"""Between the name of a parameter and that of a number that the optimizer keeps for each of its elements."""


class Region(NamedTuple):
    """Which part of a tensor: these indices of one of its dimensions."""

    dim: int
    indices: torch.Tensor
    """int64, each index once, in the part's order."""


Regions = Mapping[str, Region]
"""By the names of parameters, those of a part. What has no region there is whole."""
ModelPart = tuple[Regions, Mapping[str, Any]]
"""A part: where it lies, and its tensors by name, moments of the optimizer among them (:func:`moment_name`)."""


class Parting(Protocol):
    """Who has which part of a model, as a checkpoint says it."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Of the parameters that lie in parts: the shapes in the whole model."""

    def regions(self, rank: int) -> Regions:
        """Where the part of a rank lies."""

    def kept(self, rank: int, own: Mapping[str, Any]) -> dict[str, Any]:
        """The tensors of the part, from what the rank has written into its shard."""


class Slices(NamedTuple):
    """Each of so many ranks has a run of rows of each parameter, as PyTorch's ``Shard(0)`` deals them."""

    shapes: Mapping[str, tuple[int, ...]]
    ranks: int

    def regions(self, rank: int) -> Regions:
        """See :class:`Parting`."""
        return {name: Region(0, self._rows(shape[0], rank)) for name, shape in self.shapes.items()}

    def kept(self, rank: int, own: Mapping[str, Any]) -> dict[str, Any]:
        """See :class:`Parting`."""
        return {**own["model"], **own["optimizer"]}

    def state(self) -> dict[str, Any]:
        """As plain values."""
        return {"shapes": {name: list(shape) for name, shape in self.shapes.items()}, "ranks": self.ranks}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Slices":
        """The same again."""
        return cls({name: tuple(shape) for name, shape in state["shapes"].items()}, state["ranks"])

    def _rows(self, rows: int, rank: int) -> torch.Tensor:
        longest = -(-rows // self.ranks)
        return torch.arange(min(rank * longest, rows), min((rank + 1) * longest, rows))


def moment_name(parameter: str, kind: str) -> str:
    """What a piece calls the numbers of one kind that the optimizer keeps for a parameter, such as ``exp_avg``."""
    return f"{parameter}{OF}{kind}"


def is_moment(name: str) -> bool:
    """Whether a tensor of a piece is what an optimizer keeps."""
    return OF in name


def weights_in(part: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """What of a part, or of the whole, is no moment."""
    return {name: value for name, value in part.items() if not is_moment(name)}


def base_name(name: str) -> str:
    """The parameter that a tensor of a piece belongs to."""
    return name.partition(OF)[0]


def room_for(
    regions: Regions, shapes: Mapping[str, tuple[int, ...]], like: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Empty parts of parameters of these ``shapes``; ``like`` says of which type and on which device."""
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
    """Overwrite parts, which lie at some regions of parameters of these ``shapes``, by those of others' pieces.

    Pieces are looked at one after another, and together hold every element. Returns what is in them besides and is in
    no parts: the mean of theirs where that is a floating-point number, else the first one's.
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
                continue  # of a parameter that is in none of ours
            elif value.is_floating_point():
                rest[name], types[name] = rest.get(name, 0) + value.double(), value.dtype
            else:
                rest.setdefault(name, value)
        del piece, value  # before the next one is read
    return {name: (value / count).to(types[name]) if name in types else value for name, value in rest.items()}


def _copy(
    source: torch.Tensor, theirs: Region | None, target: torch.Tensor, ours: Region | None, shape: tuple[int, ...]
) -> None:
    """Copy what two parts of a tensor have in common."""
    either = ours or theirs
    if either is None:
        target.copy_(source)
        return
    if ours and theirs and ours.dim != theirs.dim:  # each has all of what the other is a part of
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
    """Copy some indices of a dimension to others of another tensor, some rows at a time."""
    rows = max(1, COPIED_BYTES // max(1, source[:1].nbytes))
    if dim == 0:
        for some, indices in zip(theirs.split(rows), ours.split(rows), strict=True):
            target.index_copy_(0, indices.to(target.device), source[some.to(source.device)].to(target))
        return
    for begin in range(0, len(source), rows):
        block = slice(begin, begin + rows)
        values = source[block].index_select(dim, theirs.to(source.device))
        target[block].index_copy_(dim, ours.to(target.device), values.to(target))
