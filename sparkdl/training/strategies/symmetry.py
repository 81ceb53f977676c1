"""Checks that a network's neurons can be dealt: its outputs must not depend on their order.

Runs on the driver, before anything starts.
"""

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from sparkdl.errors import ModelError
from sparkdl.inputs.tensors import Inputs, answer, like
from sparkdl.models import logits_of
from sparkdl.training.strategies.sub_networks import (
    choose_layers,
    count_neurons,
    deal,
    find_cuts,
    hidden_layers,
    overwrite,
    tensors_of,
)

__all__ = ["check_counts", "check_sub_networks", "may_be_permuted", "random_rows"]

TOLERANCE = 1e-3  # relative, in float32; outputs that depend on the order of neurons differ by their whole size


def check_sub_networks(model: nn.Module, rows: Inputs, layers: Sequence[str] | None, *, ranks: int) -> None:
    """Try to cut a network into a sub-network for each rank; ``rows`` are at least two rows like its inputs.

    Raises :class:`ModelError` when it has no hidden layer, when a hidden layer has fewer neurons than there are ranks,
    when anything but the next layer reads its neurons, or when a sub-network cannot be computed.
    """
    rows, chosen = random_rows(rows), choose_layers(model, layers)
    if not may_be_permuted(model, rows, chosen):
        fitting = [layer for layer in hidden_layers(model) if may_be_permuted(model, rows, [layer])]
        raise ModelError(
            "train.strategy ist needs hidden layers that only the next layer reads, and modules between them that treat"
            f" all neurons alike. That is not true for {', '.join(chosen)}; set train.strategy.layers to some"
            f" of the suitable layers: {', '.join(fitting) or 'there are none'}"
        )
    cuts, tensors = find_cuts(model, chosen), tensors_of(model)
    counts = count_neurons(cuts, tensors)
    check_counts(counts, ranks=ranks)
    smallest = deal(counts, size=ranks, seed=0, number=0)[-1]
    network = copy.deepcopy(model).train()
    overwrite(network, {name: cut.take(tensors[name].detach(), smallest) for name, cut in cuts.items()})
    try:
        answer(network, rows)
    except Exception as error:  # whatever a network may raise
        raise ModelError(
            f"a sub-network of 1/{ranks} of the neurons cannot be computed: {type(error).__name__}: {error}. If a layer"
            " or a forward method contains the number of neurons, set train.strategy.layers to other layers"
        ) from None


def check_counts(counts: Mapping[str, int], *, ranks: int) -> None:
    """Raise :class:`ModelError` for a hidden layer with fewer neurons than ranks."""
    for layer, count in counts.items():
        if count < ranks:
            raise ModelError(
                f"the layer {layer!r} has {count} neurons to deal to {ranks} ranks; make it wider, name other layers in"
                " train.strategy.layers, or lower cluster.num_ranks"
            )


def may_be_permuted(
    model: nn.Module, rows: Inputs, layers: Sequence[str], *, groups: Mapping[str, int] | None = None
) -> bool:
    """Whether the network stays the same function when the neurons of these layers are permuted.

    ``groups`` has for a layer the number of groups of neurons; neurons are permuted within their group.
    """
    network = copy.deepcopy(model).eval()
    tensors = tensors_of(network)
    generator = torch.Generator().manual_seed(0)
    for tensor in tensors.values():  # values equal for all neurons, as initial means of zero, would hide their order
        if tensor.is_floating_point() and tensor.ndim:
            spread = torch.rand(tensor.shape, generator=generator) + 0.5  # positive, because it may be a variance
            if tensor.ndim > 1:
                spread = torch.randn(tensor.shape, generator=generator) / max(tensor[0].numel(), 1) ** 0.5
            tensor.data = spread.to(tensor.dtype)
    try:
        cuts = find_cuts(network, layers)
    except ModelError:
        return False
    counts = count_neurons(cuts, tensors)
    order = {layer: _permuted(count, (groups or {}).get(layer, 1), generator) for layer, count in counts.items()}
    with torch.no_grad():
        expected = logits_of(answer(network, rows))
        overwrite(network, {name: cut.take(tensors[name].detach(), order) for name, cut in cuts.items()})
        return torch.allclose(
            logits_of(answer(network, rows)), expected, rtol=0, atol=TOLERANCE * float(expected.abs().max())
        )


def _permuted(count: int, groups: int, generator: torch.Generator) -> torch.Tensor:
    size = count // groups
    return torch.cat([torch.randperm(size, generator=generator) + group * size for group in range(groups)])


def random_rows(rows: Inputs) -> Inputs:
    """Random rows of the same shapes and types; the same rows on every call.

    No value is negative, as values may be indices of words. Masks stay as they are, and integers are not larger than
    the largest integer in ``rows``, since an embedding may have no larger index.
    """
    generator = torch.Generator().manual_seed(0)

    def drawn(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype == torch.bool:
            return tensor
        if tensor.is_floating_point():
            return torch.randn(tensor.shape, generator=generator).abs().to(tensor.dtype)
        most = 256 if tensor.dtype == torch.uint8 else int(tensor.max()) + 1
        return torch.randint(0, most, tensor.shape, generator=generator, dtype=tensor.dtype)

    return like(rows, drawn)
