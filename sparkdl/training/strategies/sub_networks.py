"""How a network is cut into sub-networks: which neurons each sub-network has, and which weights belong to them.

The neurons (of a convolution: the channels) of each hidden layer are dealt without replacement. A sub-network has the
rows of its neurons in their layer's weight, and their columns in the weight of the layer that reads them: a block of
the weight between two dealt layers (Yuan et al., 2019, arXiv 1910.02120, section 3). A neuron of an embedding is one
component of every vector, so that its part of the table is a column.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from sparkdl.errors import ModelError

__all__ = [
    "Cut",
    "Neurons",
    "choose_layers",
    "count_neurons",
    "deal",
    "find_cuts",
    "hidden_layers",
    "overwrite",
    "tensors_of",
]

DENSE = nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d
"""Layers with a weight of shape (neurons, inputs, ...), each of whose neurons reads all inputs."""
TABLE = nn.EmbeddingBag
"""A layer with a weight of shape (vectors, neurons), which reads indices of vectors, and no neurons."""

Neurons = Mapping[str, torch.Tensor]
"""By hidden layer: the indices of some of its neurons."""


class Cut(NamedTuple):
    """Which part of a tensor belongs to which neurons."""

    rows: str | None = None
    """The hidden layer that has a neuron for each index of the first dimension."""
    columns: str | None = None
    """The hidden layer whose neurons are read along the second dimension."""
    width: int = 1
    """Columns per neuron of ``columns``: a flattened channel has one for each pixel."""
    vectors: str | None = None
    """The hidden layer, an embedding, that has a neuron for each index of the second dimension."""

    @property
    def own(self) -> str | None:
        """The hidden layer that the tensor belongs to, which is not the layer that it reads."""
        return self.rows or self.vectors

    def take(self, whole: torch.Tensor, neurons: Neurons) -> torch.Tensor:
        """A copy of the part that belongs to some neurons.

        Weights are scaled up as their neuron reads fewer inputs, so that the weighted sum keeps its size.
        """
        part = self.part(whole, neurons)
        return part * (whole.shape[1] / part.shape[1]) if self.columns else part

    def part(self, whole: torch.Tensor, neurons: Neurons) -> torch.Tensor:
        """The same part, without scaling."""
        return whole[self._place(neurons, whole.device)]

    def put(self, part: torch.Tensor, whole: torch.Tensor, neurons: Neurons) -> None:
        """Write the result of :meth:`take`, as training has changed it, back into ``whole``."""
        if self.columns:
            part = part * (part.shape[1] / whole.shape[1])
        whole[self._place(neurons, whole.device)] = part

    def shape(self, whole: torch.Tensor, neurons: Neurons) -> tuple[int, ...]:
        """The shape of that part."""
        shape = list(whole.shape)
        if self.rows:
            shape[0] = len(neurons[self.rows])
        if self.columns:
            shape[1] = len(neurons[self.columns]) * self.width
        if self.vectors:
            shape[1] = len(neurons[self.vectors])
        return tuple(shape)

    def make_fresh(self, whole: torch.Tensor, *, ranks: int) -> None:
        """Scale initial weights down in place, so that sub-networks start with the variance of the whole network."""
        if self.columns:
            whole /= math.sqrt(ranks)

    def _place(self, neurons: Neurons, device: torch.device) -> tuple[slice | torch.Tensor, ...]:
        if self.vectors:
            return (slice(None), neurons[self.vectors].to(device))
        rows = neurons[self.rows].to(device) if self.rows else slice(None)
        if not self.columns:
            return (rows,)
        first = neurons[self.columns].to(device) * self.width
        columns = (first[:, None] + torch.arange(self.width, device=device)).flatten()
        return (rows if isinstance(rows, slice) else rows[:, None], columns)


def choose_layers(model: nn.Module, layers: Sequence[str] | None = None) -> Sequence[str]:
    """The names of the layers whose neurons are dealt: ``layers``, by default all hidden ones.

    Raises :class:`ModelError` when there are none, or for a name that is not that of a hidden layer.
    """
    hidden = hidden_layers(model)
    if not hidden:
        raise ModelError(
            "train.strategy ist assigns neurons of hidden layers to ranks, but the network has none: it needs at least"
            " two layers that are torch.nn.Linear, ConvNd without groups or, as the first one, EmbeddingBag. Choose"
            " another train.strategy or network"
        )
    if unknown := [name for name in layers or [] if name not in hidden]:
        raise ModelError(
            f"train.strategy.layers: {unknown[0]!r} is not a hidden layer whose neurons can be assigned to ranks; the"
            f" network has {', '.join(hidden)}"
        )
    return hidden if layers is None else layers


def hidden_layers(model: nn.Module) -> list[str]:
    """All layers with neurons except the last, whose neurons are the outputs."""
    return list(_weights(model))[:-1]


def find_cuts(model: nn.Module, layers: Collection[str]) -> dict[str, Cut]:
    """How the parameters and buffers of a network are cut, by name; all others stay whole.

    Assumes that the neurons of each of ``layers`` are read by the next layer, in the order in which the network names
    its modules, and by nothing else. Modules between them with a value for each neuron (batch normalisation) are cut,
    too. Raises :class:`ModelError` when the next layer does not have an input for each neuron.
    """
    tensors, weights = tensors_of(model), _weights(model)
    cuts: dict[str, Cut] = {}
    before: str | None = None  # the dealt layer whose neurons come out at this place
    neurons = 0  # of that layer
    for name, module in model.named_modules():
        if name in weights:
            rows = name if name in layers else None
            table = isinstance(module, TABLE)
            inputs = 0 if table else weights[name].shape[1]
            if before and (inputs < neurons or inputs % neurons):
                raise ModelError(f"{name!r} has {inputs} inputs, which do not fit the {neurons} neurons of {before!r}")
            if rows and table:
                cuts[f"{name}.weight"] = Cut(vectors=name)
            elif rows or before:
                cuts[f"{name}.weight"] = Cut(rows, before, inputs // neurons if before else 1)
            if rows and f"{name}.bias" in tensors:
                cuts[f"{name}.bias"] = Cut(rows)
            before, neurons = rows, weights[name].shape[1 if table else 0]
        elif before:
            own = [*module.named_parameters(name, recurse=False), *module.named_buffers(name, recurse=False)]
            cuts |= {key: Cut(before) for key, tensor in own if key in tensors and tensor.shape[:1] == (neurons,)}
    return cuts


def deal(counts: Mapping[str, int], *, size: int, seed: int, number: int) -> list[Neurons]:
    """The neurons of each of ``size`` sub-networks in round ``number``, each neuron once; depends on seed and round.

    ``counts`` has the number of neurons of each hidden layer. The sizes of sub-networks differ by at most one neuron
    per layer, and stay the same in every round. With ``size`` 1, the sub-network is the whole network.
    """
    shares: list[dict[str, torch.Tensor]] = [{} for _ in range(size)]
    for place, (layer, count) in enumerate(counts.items()):
        order = np.random.default_rng([seed % 2**63, number, place]).permutation(count)
        for share, dealt in zip(shares, np.array_split(order, size), strict=True):
            share[layer] = torch.from_numpy(np.sort(dealt))
    return list(shares)


def count_neurons(cuts: Mapping[str, Cut], tensors: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """The number of neurons, in the whole network, of each dealt layer."""
    return {cut.own: tensors[name].shape[1 if cut.vectors else 0] for name, cut in cuts.items() if cut.own}


def tensors_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers by name."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def overwrite(model: nn.Module, values: Mapping[str, torch.Tensor]) -> None:
    """Replace the values of parameters and buffers, which stay the same objects but may change their shapes."""
    tensors = tensors_of(model)
    for name, value in values.items():
        tensors[name].data = value


def _weights(model: nn.Module) -> dict[str, torch.Tensor]:
    """The weights of the layers that have neurons, by the layer's name, in the order of the network's modules."""
    tensors = tensors_of(model)
    return {
        name: tensors[f"{name}.weight"]
        for name, module in model.named_modules()
        if isinstance(module, (*DENSE, TABLE)) and getattr(module, "groups", 1) == 1 and f"{name}.weight" in tensors
    }
