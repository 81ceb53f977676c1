"""The parts of a network that no rank holds as a whole: what a rank keeps, and how neurons go from rank to rank.

Each neuron of a hidden layer has one owner, who keeps its row of the layer's weight and bias (of an embedding, its
number of each vector), and, of the last hidden layer, its column of the outputs' weight. So n ranks keep 1/n of the
network each. What belongs to no hidden layer (the outputs' bias) is on all of them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from sparkdl.collectives import Communicator
from sparkdl.layouts import Region, Regions
from sparkdl.training.strategies.sub_networks import Cut, Neurons, deal

__all__ = ["DealtParts", "Ownership", "grow", "kept_of", "move_neurons", "reads_few", "shrink"]

PIECE_BYTES = 8 << 20
"""Of a tensor that are in memory at a time, beside its parts, while neurons change their owners."""


class Ownership(NamedTuple):
    """What has to be known of a network to say which rank keeps what of it, in any round."""

    cuts: Mapping[str, Cut]
    shapes: Mapping[str, tuple[int, ...]]
    """Of the parameters that are cut, in the whole network."""
    counts: Mapping[str, int]
    """By hidden layer, its neurons."""
    seed: int
    ranks: int

    def owners(self, number: int) -> list[Neurons]:
        """By rank, the neurons that it owns from the beginning of a round until the next one begins."""
        return deal(self.counts, size=self.ranks, seed=self.seed, number=number)

    def regions(self, neurons: Neurons) -> Regions:
        """Where the part of the owner of some neurons lies."""
        kept = {name: kept_of(cut, neurons) for name, cut in self.cuts.items()}
        return {name: Region(dim, index) for name, (index, dim) in kept.items()}

    def state(self) -> dict[str, Any]:
        """As plain values."""
        cuts = {name: list(cut) for name, cut in self.cuts.items()}
        shapes = {name: list(shape) for name, shape in self.shapes.items()}
        return {**self._asdict(), "cuts": cuts, "shapes": shapes, "counts": dict(self.counts)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Ownership":
        """The same again."""
        cuts = {name: Cut(*cut) for name, cut in state["cuts"].items()}
        shapes = {name: tuple(shape) for name, shape in state["shapes"].items()}
        return cls(cuts, shapes, state["counts"], state["seed"], state["ranks"])


class DealtParts(NamedTuple):
    """The parts that ranks have written into a checkpoint (:class:`~sparkdl.layouts.Parting`)."""

    ownership: Ownership
    number: int
    """Of the round for which neurons were dealt last."""
    in_round: bool

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """See :class:`~sparkdl.layouts.Parting`."""
        return self.ownership.shapes

    def regions(self, rank: int) -> Regions:
        """See :class:`~sparkdl.layouts.Parting`."""
        return self.ownership.regions(self.ownership.owners(self.number)[rank])

    def kept(self, rank: int, own: Mapping[str, Any]) -> dict[str, Any]:
        """See :class:`~sparkdl.layouts.Parting`. Without moments, which each round begins anew."""
        kept = dict(own["model"])
        if self.in_round:
            neurons = self.ownership.owners(self.number)[rank]
            kept |= shrink(self.ownership, neurons, kept, own["strategy"]["waiting"])
        return kept

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "DealtParts":
        """From what the strategy has written."""
        return cls(Ownership.from_state(state["ownership"]), max(state["round"] - 1, 0), state["in_round"])


def kept_of(cut: Cut, neurons: Neurons) -> tuple[torch.Tensor, int]:
    """The neurons that decide what an owner keeps of a parameter, and the dimension along which they lie."""
    if cut.rows:
        return neurons[cut.rows], 0
    return neurons[str(cut.vectors or cut.columns)], 1


def reads_few(cut: Cut) -> bool:
    """Whether a sub-network has less of the parameter than its owner keeps: of all inputs only those of its neurons."""
    return bool(cut.rows and cut.columns)


@torch.no_grad()
def move_neurons(
    kept: torch.Tensor,
    *,
    dim: int,
    before: Sequence[torch.Tensor],
    after: torch.Tensor,
    communicator: Communicator,
) -> None:
    """Overwrite what this rank keeps of a parameter by the part of the neurons that it owns from now on.

    ``before`` are by rank the neurons that each has owned, ``after`` as many of them as this rank had, in any order.
    All ranks call it together. What a rank holds besides are some pieces of :data:`PIECE_BYTES`.
    """
    order = torch.cat(list(before))
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order))
    found = place[after].to(kept.device)
    across = kept.unsqueeze(1).T if kept.ndim == 1 else kept if dim else kept.T  # neurons along the second dimension
    longest = max(map(len, before))
    count = max(1, PIECE_BYTES // (len(order) * kept.element_size()))
    for begin in range(0, len(across), count):
        piece = across[begin : begin + count]
        sent = nn.functional.pad(piece, (0, longest - piece.shape[1]))
        gathered = communicator.all_gather(sent)
        whole = torch.cat([each[:, : len(own)] for each, own in zip(gathered, before, strict=True)], dim=1)
        piece.copy_(whole[:, found])


def grow(
    ownership: Ownership, neurons: Neurons, kept: Mapping[str, torch.Tensor]
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """From what an owner keeps, the weights of its sub-network, and what waits in the meantime; in place where it can.

    What :meth:`Cut.take` does with the whole.
    """
    parts, waiting = {}, {}
    for name, cut in ownership.cuts.items():
        part = kept[name]
        if reads_few(cut):
            waiting[name] = part
            part = part[:, neurons[str(cut.columns)].to(part.device)]
        if cut.columns:
            part *= ownership.shapes[name][1] / part.shape[1]
        parts[name] = part
    return parts, waiting


def shrink(
    ownership: Ownership, neurons: Neurons, parts: Mapping[str, torch.Tensor], waiting: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """From the weights of a sub-network what its owner keeps, in place: what :meth:`Cut.put` does with the whole."""
    kept = {}
    for name, cut in ownership.cuts.items():
        part = parts[name]
        if cut.columns:
            part *= part.shape[1] / ownership.shapes[name][1]
        if reads_few(cut):
            waiting[name][:, neurons[str(cut.columns)].to(part.device)] = part
            part = waiting[name]
        kept[name] = part
    return kept
