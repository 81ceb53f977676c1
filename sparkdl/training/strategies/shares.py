"""The parts of a network in sharded IST: what each rank keeps, and how neurons move between ranks.

Each neuron of a hidden layer has one owner. The owner keeps the neuron's row of the layer's weight and bias (for an
embedding, its component of each vector) and, for the last hidden layer, its column of the output layer's weight. So
each of n ranks keeps 1/n of the network. Parameters that belong to no hidden layer (the bias of the outputs) are on
all ranks.
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
"""Bytes of a tensor that are in memory at a time, beside a rank's part, while neurons move between ranks."""


class Ownership(NamedTuple):
    """Determines which rank keeps which part of a network, in every round."""

    cuts: Mapping[str, Cut]
    shapes: Mapping[str, tuple[int, ...]]
    """Shapes, in the whole network, of the parameters that are cut."""
    counts: Mapping[str, int]
    """The number of neurons of each hidden layer."""
    seed: int
    ranks: int

    def owners(self, number: int) -> list[Neurons]:
        """By rank, the neurons that it owns from the beginning of a round until the next one begins."""
        return deal(self.counts, size=self.ranks, seed=self.seed, number=number)

    def regions(self, neurons: Neurons) -> Regions:
        """Where the part of the owner of these neurons lies in the whole network."""
        kept = {name: kept_of(cut, neurons) for name, cut in self.cuts.items()}
        return {name: Region(dim, index) for name, (index, dim) in kept.items()}

    def state(self) -> dict[str, Any]:
        """The ownership as plain values."""
        cuts = {name: list(cut) for name, cut in self.cuts.items()}
        shapes = {name: list(shape) for name, shape in self.shapes.items()}
        return {**self._asdict(), "cuts": cuts, "shapes": shapes, "counts": dict(self.counts)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Ownership":
        """The ownership from its :meth:`state`."""
        cuts = {name: Cut(*cut) for name, cut in state["cuts"].items()}
        shapes = {name: tuple(shape) for name, shape in state["shapes"].items()}
        return cls(cuts, shapes, state["counts"], state["seed"], state["ranks"])


class DealtParts(NamedTuple):
    """The parts that ranks have written into a checkpoint (:class:`~sparkdl.layouts.Parting`)."""

    ownership: Ownership
    number: int
    """The number of the round for which neurons were dealt last."""
    in_round: bool

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """See :class:`~sparkdl.layouts.Parting`."""
        return self.ownership.shapes

    @property
    def ranks(self) -> int:
        """See :class:`~sparkdl.layouts.Parting`."""
        return self.ownership.ranks

    def regions(self, rank: int) -> Regions:
        """See :class:`~sparkdl.layouts.Parting`."""
        return self.ownership.regions(self.ownership.owners(self.number)[rank])

    def kept(self, rank: int, own: Mapping[str, Any]) -> dict[str, Any]:
        """See :class:`~sparkdl.layouts.Parting`. Without moments, which each round starts anew."""
        kept = dict(own["model"])
        if self.in_round:
            neurons = self.ownership.owners(self.number)[rank]
            kept |= shrink(self.ownership, neurons, kept, own["strategy"]["waiting"])
        return kept

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "DealtParts":
        """The parts from the strategy's state."""
        return cls(Ownership.from_state(state["ownership"]), max(state["round"] - 1, 0), state["in_round"])


def kept_of(cut: Cut, neurons: Neurons) -> tuple[torch.Tensor, int]:
    """The neurons that decide what an owner keeps of a parameter, and the dimension along which they lie."""
    if cut.rows:
        return neurons[cut.rows], 0
    return neurons[str(cut.vectors or cut.columns)], 1


def reads_few(cut: Cut) -> bool:
    """Whether a sub-network has fewer columns of the parameter than its owner keeps: only those of its own neurons."""
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
    """Replace this rank's part of a parameter, in place, by the part of the neurons that it owns next.

    ``before`` has the neurons that each rank owned; ``after`` has those that this rank owns next, equally many. All
    ranks call it together. Needs the memory of a few pieces of :data:`PIECE_BYTES`.
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
    """From an owner's part, the weights of its sub-network, and the complete rows to keep aside; in place if possible.

    Does for a part what :meth:`Cut.take` does for the whole network.
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
    """From the weights of a sub-network, its owner's part, in place: the inverse of :func:`grow`."""
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
