"""Networks that sharded IST can split: plain stacks of layers, initialised and computed part by part.

Such a network is built without its weights (on PyTorch's device ``meta``), so that only its shapes are known.
"""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod, sqrt
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import override

from sparkdl.errors import ModelError
from sparkdl.models.build import ScaledImages
from sparkdl.models.networks import NO_WORD, WordVectors
from sparkdl.training.strategies.shares import Ownership, kept_of
from sparkdl.training.strategies.sub_networks import Neurons, choose_layers, count_neurons, find_cuts, tensors_of

__all__ = ["check_draws", "draw_parts", "layers_of", "narrowed", "ownership_of", "recorded_draws", "replace_parameters"]

BY_NEURON = (
    *(nn.Identity, nn.Dropout, nn.AlphaDropout, nn.Tanh, nn.Sigmoid, nn.LogSigmoid, nn.Softplus, nn.Softsign),
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanhshrink),
    *(nn.Hardtanh, nn.Hardsigmoid, nn.Hardswish),
)
"""Layers without weights that treat each neuron by itself."""
BEFORE = ScaledImages, nn.Flatten
"""Layers without weights that may also come before the first layer with weights."""
DRAWN_BYTES = 8 << 20
"""Bytes of a weight that are drawn at a time."""
NORMAL_NUMBERS = 16
"""PyTorch's CPU generator draws normal numbers in groups of this size, from as many uniform ones."""
Drawn = tuple[tuple[int, ...], str, tuple[float, ...]]
"""A tensor's shape, the operation that initialised it, and the operation's numbers."""
NARROW = 2
"""Neurons of each hidden layer of the narrow network that is tried in place of a wide one."""


def layers_of(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The layers of a plain stack in their order, by name.

    Raises :class:`ModelError` for a network of other layers than linear ones, word vectors before them, and layers
    that act on each neuron separately.
    """
    found = list(_leaves("", model))
    linear = [place for place, (_, layer) in enumerate(found) if type(layer) is nn.Linear]
    for place, (name, layer) in enumerate(found):
        known = BY_NEURON if linear and place > linear[0] else (*BY_NEURON, *BEFORE)
        known = known if place else (*known, WordVectors)
        kind = type(layer).__name__
        if type(layer) is nn.Linear and not {"weight", "bias"} >= set(layer._parameters):
            kind += " whose weights are made from others"
        elif type(layer) in (nn.Linear, *known):
            continue
        raise ModelError(
            "train.strategy.sharded is for networks that are torch.nn.Sequential of torch.nn.Linear and activations"
            f" (train.model=mlp and bag_of_words are such); {name or 'the network'!r} is a {kind}. Set it to false, or"
            " choose another train.model"
        )
    if linear and linear[-1] != len(found) - 1:
        raise ModelError(
            f"train.strategy.sharded: the last layer must be a torch.nn.Linear, but {found[-1][0]!r} is not"
        )
    weights = [layer.weight for _, layer in found if isinstance(layer, nn.Linear)]
    if len({id(weight) for weight in weights}) < len(weights):
        raise ModelError(
            "train.strategy.sharded: each torch.nn.Linear must have its own weights, but two layers share theirs"
        )
    return found


def ownership_of(model: nn.Module, *, seed: int, ranks: int = 1) -> Ownership:
    """How a plain stack, built without weights, is split over ranks. Raises :class:`ModelError` for other networks."""
    layers_of(model)
    cuts, tensors = find_cuts(model, choose_layers(model)), tensors_of(model)
    counts = count_neurons(cuts, tensors)
    return Ownership(cuts, {name: tuple(tensors[name].shape) for name in cuts}, counts, seed, ranks)


def draw_parts(model: nn.Module, ownership: Ownership, neurons: Neurons, *, seed: int) -> dict[str, torch.Tensor]:
    """A rank's parts of the initial weights, by name, equal to those of the whole network with this seed.

    Layers draw their weights from one stream of random numbers. A rank draws all of it, some rows at a time, and keeps
    its own part.
    """
    generator = torch.Generator().manual_seed(seed)
    parts = {}
    for draw in _draws(model):
        name, parameter = draw.name, draw.parameter
        cut = ownership.cuts.get(name)
        own, dim = kept_of(cut, neurons) if cut else (torch.arange(len(parameter)), 0)
        shape = list(parameter.shape)
        shape[dim] = len(own)
        part = torch.empty(shape, dtype=parameter.dtype)
        begin = 0
        for block in draw.blocks:
            values = draw.fill(torch.empty(block, dtype=parameter.dtype), generator)
            end = begin + len(values)
            if dim:
                part[begin:end] = values[:, own]
            else:
                here = torch.nonzero((own >= begin) & (own < end)).flatten()
                part[here] = values[own[here] - begin]
            begin = end
        if draw.bound is None:
            part[NO_WORD] = 0
        parts[name] = part
    return parts


def narrowed(model: nn.Module, ownership: Ownership) -> nn.Module:
    """The same network with few neurons in each hidden layer, for trials that do not depend on the width."""
    few = {layer: torch.arange(min(NARROW, count)) for layer, count in ownership.counts.items()}
    narrow = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(0)
    values = {}
    for name, parameter in narrow.named_parameters():
        cut = ownership.cuts.get(name)
        shape = cut.shape(parameter, few) if cut else tuple(parameter.shape)
        values[name] = torch.randn(shape, generator=generator, dtype=parameter.dtype) / max(1, shape[-1]) ** 0.5
    replace_parameters(narrow, values)
    return narrow


def replace_parameters(model: nn.Module, values: Mapping[str, torch.Tensor]) -> None:
    """Replace parameters that only have a shape by these."""
    for name, value in values.items():
        owner, _, key = name.rpartition(".")
        layer = model.get_submodule(owner)
        setattr(layer, key, nn.Parameter(value, requires_grad=getattr(layer, key).requires_grad))


@contextmanager
def recorded_draws() -> Iterator[list[Drawn]]:
    """Record how weights are initialised while a network is built without them."""
    recorder = _Recorder()
    with recorder:
        yield recorder.drawn


def check_draws(model: nn.Module, drawn: list[Drawn]) -> None:
    """Raise :class:`ModelError` for a network that initialises its layers in another way than they do by default."""
    if drawn != [each for draw in _draws(model) for each in draw.recorded]:
        raise ModelError(
            "train.strategy.sharded draws the initial weights in parts, as torch.nn.Linear does by default, one layer"
            " after another; the network initialises them in another way. Keep the default, or set it to false"
        )


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.drawn: list[Drawn] = []

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        changed = args[0] if func._schema.is_mutable and args else None
        if isinstance(changed, torch.Tensor) and changed.is_meta:
            self.drawn.append((tuple(changed.shape), func._schema.name.removeprefix("aten::"), tuple(args[1:])))
        return func(*args, **(kwargs or {}))


def _leaves(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    if type(module) is not nn.Sequential:
        yield name, module
        return
    for key, child in module._modules.items():  # also a module that occurs twice
        assert child is not None
        yield from _leaves(f"{name}.{key}" if name else key, child)


class _Draw(NamedTuple):
    """How a layer initialises a parameter by default."""

    name: str
    parameter: torch.Tensor
    bound: float | None
    """The bound of a uniform distribution; None for word vectors, which are normal."""

    @property
    def blocks(self) -> list[tuple[int, ...]]:
        """The shapes of the blocks of rows that are drawn one after another.

        The last block includes the remainder: PyTorch would draw other numbers for a block of less than a group.
        """
        rows, *others = self.parameter.shape
        some = DRAWN_BYTES // (prod(others) * self.parameter.element_size()) if others else rows
        together = NORMAL_NUMBERS if self.bound is None else 1
        some = max(together, some - some % together)
        count = max(1, rows // some)
        return [(some, *others)] * (count - 1) + [(rows - (count - 1) * some, *others)]

    def fill(self, values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Draw the values of a block, in place."""
        if self.bound is None:
            return values.normal_(generator=generator)
        return values.uniform_(-self.bound, self.bound, generator=generator)

    @property
    def recorded(self) -> list[Drawn]:
        """The records that this initialisation makes."""
        shape = tuple(self.parameter.shape)
        if self.bound is None:
            return [(shape, "normal_", ()), (shape[1:], "fill_", (0,))]
        return [(shape, "uniform_", (-self.bound, self.bound))]


def _draws(model: nn.Module) -> Iterator[_Draw]:
    """All parameters in the order in which layers draw them."""
    for name, layer in layers_of(model):
        if isinstance(layer, WordVectors):
            yield _Draw(f"{name}.table.weight", layer.table.weight, None)
        if isinstance(layer, nn.Linear):
            gain = nn.init.calculate_gain("leaky_relu", sqrt(5))
            yield _Draw(f"{name}.weight", layer.weight, sqrt(3) * (gain / sqrt(layer.in_features)))
            if layer.bias is not None:
                yield _Draw(f"{name}.bias", layer.bias, 1 / sqrt(layer.in_features))
