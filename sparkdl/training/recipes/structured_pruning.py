"""Structured pruning: removes neurons and channels from a network (``train.pruning: {kind: structured}``).

The number of neurons that stay follows from the shapes of the network alone; which neurons stay follows from its
weights. So every process that builds the network (ranks, servers, the driver) gets the same shapes from any weights,
and then loads the weights of the neurons that stay as it loads any weights that training starts from.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from sparkdl.errors import ModelError
from sparkdl.inputs.tensors import Inputs, answer
from sparkdl.models import in_mode
from sparkdl.training.strategies.sub_networks import (
    Cut,
    count_neurons,
    find_cuts,
    hidden_layers,
    overwrite,
    tensors_of,
)
from sparkdl.training.strategies.symmetry import may_be_permuted, random_rows

__all__ = ["prune_neurons"]


def prune_neurons(model: nn.Module, rows: Inputs, keep: float) -> None:
    """Make hidden layers narrower in place; the share ``keep`` of their neurons stays. Runs anywhere.

    ``rows`` are at least two examples of the network's inputs. The neurons with the largest weights stay, in their
    order. Raises :class:`ModelError` if there is no layer whose neurons only the next layer reads, or if the network
    cannot be computed with fewer neurons.
    """
    rows = random_rows(rows)
    layers = _layers(model, rows)
    cuts, tensors = find_cuts(model, layers), tensors_of(model)
    groups = _groups(model, cuts)
    kept = {
        layer: _largest(_norms(layer, count, cuts, tensors), keep, groups.get(layer, 1))
        for layer, count in count_neurons(cuts, tensors).items()
    }
    overwrite(model, {name: cut.part(tensors[name].detach(), kept).clone() for name, cut in cuts.items()})
    _narrow_depthwise(model)
    try:
        with in_mode(model, training=False), torch.no_grad():
            answer(model, rows)
    except Exception as error:  # whatever a network may raise
        raise ModelError(
            f"train.pruning: the network cannot be computed with {keep:g} of the neurons of {', '.join(layers)}:"
            f" {type(error).__name__}: {error}. A layer or a forward method has the number of neurons written into it"
        ) from None


def _narrow_depthwise(model: nn.Module) -> None:
    """Set the number of channels of depthwise convolutions to that of their narrower weights."""
    for module in model.modules():
        if isinstance(module, _ConvNd) and module.groups == module.in_channels == module.out_channels > 1:
            module.groups = module.in_channels = module.out_channels = len(module.weight)


def _layers(model: nn.Module, rows: Inputs) -> Sequence[str]:
    """The layers whose neurons can be removed. Raises :class:`ModelError` if there are none."""
    hidden = hidden_layers(model)
    if hidden and _is_symmetric(model, rows, hidden):
        return hidden
    if found := [layer for layer in hidden if _is_symmetric(model, rows, [layer])]:
        return found
    raise ModelError(
        "train.pruning structured removes neurons of hidden layers (torch.nn.Linear, ConvNd without groups,"
        " EmbeddingBag) that only the next such layer reads, but the network has none; leave it out, or choose another"
        " network"
    )


def _is_symmetric(model: nn.Module, rows: Inputs, layers: Sequence[str]) -> bool:
    try:
        groups = _groups(model, find_cuts(model, layers))
    except ModelError:
        return False
    return may_be_permuted(model, rows, layers, groups=groups)


def _groups(model: nn.Module, cuts: Mapping[str, Cut]) -> dict[str, int]:
    """By layer, the number of groups of the GroupNorm over its channels; layers without a GroupNorm are left out."""
    found = {}
    for name, cut in cuts.items():
        module = model.get_submodule(name.rpartition(".")[0])
        if isinstance(module, nn.GroupNorm) and cut.rows:
            found[cut.rows] = module.num_groups
    return found


def _norms(layer: str, count: int, cuts: Mapping[str, Cut], tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The importance of each neuron, of shape (count,): the norms of its incoming and outgoing weights, multiplied.

    The product stays the same if the incoming weights are halved and the outgoing ones doubled.
    """
    norms = torch.ones(count, dtype=torch.float64)
    for name, cut in cuts.items():
        weight = tensors[name].detach().double()
        if weight.ndim < 2:
            continue
        if cut.own == layer:
            norms *= (weight.T if cut.vectors else weight).flatten(1).norm(dim=1)
        if cut.columns == layer:
            norms *= weight.transpose(0, 1).reshape(count, -1).norm(dim=1)
    return norms


def _largest(norms: torch.Tensor, keep: float, groups: int) -> torch.Tensor:
    """The indices of the neurons that stay, in ascending order, equally many in each group."""
    in_groups = norms.view(groups, -1)
    size = in_groups.shape[1]
    chosen = in_groups.topk(max(1, round(keep * size)), dim=1).indices.sort(dim=1).values
    return (chosen + size * torch.arange(groups).unsqueeze(1)).flatten()
