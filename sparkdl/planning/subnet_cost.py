"""The cost of a step of independent subnet training: with more ranks, each computes and sends less.

A rank computes with its sub-network, and once per round receives the parts of all ranks. A sub-network of neurons has
1/n of the first and the last layer, and 1/n² of the weights between two hidden layers; one of residual blocks has 1/n.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import nn
from typing_extensions import override

from sparkdl.errors import ModelError
from sparkdl.inputs.tensors import Inputs, answer, count_rows, device_of
from sparkdl.planning.cost import Link, StepCost, Traffic, gathered, ring
from sparkdl.settings.strategies import ISTOptions, ResISTOptions, RoundsOptions
from sparkdl.training.strategies.residual_blocks import choose_blocks, cut_blocks
from sparkdl.training.strategies.sub_networks import choose_layers, count_neurons, find_cuts, tensors_of
from sparkdl.training.strategies.symmetry import check_sub_networks

__all__ = ["Dealt", "SubNetworkCost", "find_dealt", "may_be_dealt", "of_sub_networks"]


class Dealt(NamedTuple):
    """A tensor of which each rank has a part."""

    bytes: int
    operations: int
    """Multiplications with the tensor's numbers for one row."""
    neurons: tuple[int, ...]
    """The number of neurons of each hidden layer along which the tensor is cut (its own layer first, then the one that
    it reads), or the number of blocks."""

    def part(self, ranks: int) -> float:
        """The share of the tensor in the largest of ``ranks`` sub-networks."""
        return math.prod(math.ceil(count / ranks) / count for count in self.neurons)

    def kept(self, ranks: int) -> float:
        """The share of the tensor that a rank keeps of a sharded network: the complete rows of its neurons."""
        return self._replace(neurons=self.neurons[:1]).part(ranks)


@dataclass(frozen=True, kw_only=True)
class SubNetworkCost(StepCost):
    """Measured on some number of ranks, and extrapolated to others."""

    ranks: int
    """The number of ranks of the measurement."""
    whole: float
    """Seconds of a step with the whole network."""
    dealt: Sequence[Dealt]
    uncut: int
    """Bytes of tensors that every sub-network has, which are averaged at the end of a round."""
    sharded: bool = False

    @override
    def seconds(self, link: Link, ranks: int, topology: Callable[[float, int], Traffic] = ring) -> float:
        """Predicted seconds of a step; NaN for more ranks than there are neurons or blocks.

        The backend gathers sub-networks, whatever the topology of means is.
        """
        if ranks > min(count for each in self.dealt for count in each.neurons):
            return math.nan
        sent = sum(each.bytes * (each.kept if self.sharded else each.part)(ranks) for each in self.dealt)
        exchange = link.seconds(gathered(sent, ranks)) + link.seconds(ring(self.uncut, ranks))
        return self._computing(ranks) + exchange / self.period

    def _computing(self, ranks: int) -> float:
        """Linear in the operations, through both measured times: a part of the time does not depend on their number."""
        saved = self._operations(1) - self._operations(self.ranks)
        slope = max(0.0, self.whole - self.computing) / saved if saved else 0.0
        return self.computing + slope * (self._operations(ranks) - self._operations(self.ranks))

    def _operations(self, ranks: int) -> float:
        return sum(each.operations * each.part(ranks) for each in self.dealt)


def may_be_dealt(model: nn.Module, rows: Inputs, *, ranks: int) -> bool:
    """Whether the neurons of all hidden layers can be dealt to ranks; not tried on a network without weights."""
    if device_of(rows).type == "meta":
        return False
    try:
        check_sub_networks(model, rows, None, ranks=ranks)
    except ModelError:
        return False
    return True


def of_sub_networks(
    measured: StepCost, options: RoundsOptions, model: nn.Module, rows: Inputs, *, whole: float, ranks: int
) -> SubNetworkCost:
    """The cost from a measurement on ``ranks`` ranks; ``whole`` is the seconds of a step of the whole network.

    Runs on the driver.
    """
    dealt, uncut = find_dealt(model, rows, options)
    sharded = isinstance(options, ISTOptions) and options.sharded
    return SubNetworkCost(**asdict(measured), ranks=ranks, whole=whole, dealt=dealt, uncut=uncut, sharded=sharded)


def find_dealt(model: nn.Module, rows: Inputs, options: RoundsOptions) -> tuple[list[Dealt], int]:
    """The tensors of a network that are cut, and the bytes of all others; ``rows`` are like its inputs.

    Runs on the driver. The network may be one without weights, on the device ``meta``; rows have to be there, too, and
    its buffers are moved there.
    """
    model.to(device_of(rows))
    tensors, along = tensors_of(model), _along(model, options)
    uses = _uses(model, rows, {name: tensors[name] for name in along if tensors[name].ndim > 1})
    dealt = [
        Dealt(tensors[name].nbytes, tensors[name].numel() * uses.get(name, 0), counts) for name, counts in along.items()
    ]
    return dealt, sum(tensor.nbytes for name, tensor in tensors.items() if name not in along)


def _along(model: nn.Module, options: RoundsOptions) -> dict[str, tuple[int, ...]]:
    """By tensor that is cut: the number of neurons, or blocks, for each dimension along which it is cut."""
    if isinstance(options, ResISTOptions):
        blocks = choose_blocks(model, options.blocks)
        return dict.fromkeys(cut_blocks(model, blocks, ranks=1), (len(blocks),))
    cuts = find_cuts(model, choose_layers(model, options.layers if isinstance(options, ISTOptions) else None))
    counts = count_neurons(cuts, tensors_of(model))
    return {name: tuple(counts[layer] for layer in (cut.own, cut.columns) if layer) for name, cut in cuts.items()}


@torch.no_grad()
def _uses(model: nn.Module, rows: Inputs, weights: Mapping[str, torch.Tensor]) -> Mapping[str, int]:
    """By weight: how often each number is multiplied for one row: once, or in a convolution once per pixel."""
    found = dict.fromkeys(weights, 0)

    def count(name: str, _: nn.Module, __: object, outputs: torch.Tensor) -> None:
        found[name] += outputs.numel()  # of some of the rows, or of all of them

    layers = {name: model.get_submodule(name.rpartition(".")[0]) for name in weights}
    hooks = [layer.register_forward_hook(partial(count, name)) for name, layer in layers.items()]
    answer(model, rows)
    for hook in hooks:
        hook.remove()
    return {name: numbers // (count_rows(rows) * len(weights[name])) for name, numbers in found.items()}
