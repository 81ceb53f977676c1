"""Finds residual blocks in a network and leaves them out: a residual block adds something to its input.

A block is a module that returns its input unchanged when its last layer is zero, such as the blocks of a residual
network (He et al., 2016, arXiv 1512.03385) that keep the shape; or one that then returns zeros, which the network adds
to the input. The order of layers is that in which the network names its modules.
"""

import copy
from collections.abc import Callable, Sequence
from functools import partial
from types import MethodType
from typing import Any, NamedTuple

import torch
from torch import nn

from sparkdl.errors import ModelError
from sparkdl.inputs.tensors import Inputs, answer
from sparkdl.models import logits_of
from sparkdl.training.strategies.sub_networks import Neurons, overwrite, tensors_of
from sparkdl.training.strategies.symmetry import random_rows

__all__ = ["BLOCKS", "BlockCut", "check_blocks", "choose_blocks", "cut_blocks", "let_skip"]

BLOCKS = "blocks"
"""The key under which blocks are dealt, where a layer's name would be for neurons."""
PIXELS = 8
"""The side of an image in pixels, or the length of a text in words, on which a module is tried."""


class BlockCut(NamedTuple):
    """A tensor of a residual block, which a sub-network has as a whole or not at all."""

    block: int
    """The number of the block."""
    larger: int = 1
    """The factor of the tensor in a sub-network. It scales the last layer, and so what the block adds."""

    def take(self, whole: torch.Tensor, neurons: Neurons) -> torch.Tensor:
        """A copy for a sub-network with these blocks, which is empty if this block is not one of them."""
        return whole * self.larger if self._is_in(neurons) else whole.new_empty(self.shape(whole, neurons))

    def put(self, part: torch.Tensor, whole: torch.Tensor, neurons: Neurons) -> None:
        """Write the result of :meth:`take`, as training has changed it, back into ``whole``."""
        if self._is_in(neurons):
            whole.copy_(part if self.larger == 1 else part / self.larger)

    def shape(self, whole: torch.Tensor, neurons: Neurons) -> tuple[int, ...]:
        """The shape of the result of :meth:`take`."""
        return tuple(whole.shape) if self._is_in(neurons) else (0, *whole.shape[1:])

    def make_fresh(self, whole: torch.Tensor, *, ranks: int) -> None:
        """Scale initial weights down in place, so that in sub-networks they have their usual size."""
        if self.larger != 1:
            whole /= ranks

    def _is_in(self, neurons: Neurons) -> bool:
        return bool((neurons[BLOCKS] == self.block).any())


def choose_blocks(model: nn.Module, blocks: Sequence[str] | None = None) -> Sequence[str]:
    """The names of the blocks that are dealt: ``blocks``, by default all that can return their input, outermost only.

    Raises :class:`ModelError` when there are none, or for a name that is not that of a residual block.
    """
    if blocks is None:
        if found := _found("", model):
            return found
        raise ModelError(
            "train.strategy resist assigns residual blocks to ranks, but the network has none: a block is a module that"
            " returns its input plus the output of its layers, of the same shape, and may return the input alone."
            " Choose another train.strategy (ist assigns neurons) or network (train.model=resnet has blocks)"
        )
    for name in blocks:
        if name not in dict(model.named_modules()) or _stand_in(model.get_submodule(name)) is None:
            raise ModelError(
                f"train.strategy.blocks: {name!r} is not a residual block: with a last layer of zeros, a block returns"
                f" its input, or zeros of the same shape; found are {', '.join(_found('', model)) or 'none'}"
            )
        if outer := [other for other in blocks if name.startswith(f"{other}.")]:
            raise ModelError(f"train.strategy.blocks: {name!r} is inside {outer[0]!r}; leave one of them out")
    return blocks


def cut_blocks(model: nn.Module, blocks: Sequence[str], *, ranks: int) -> dict[str, BlockCut]:
    """How the parameters and buffers of blocks are cut, by name; all others stay whole."""
    cuts = {}
    for number, block in enumerate(blocks):
        module = model.get_submodule(block)
        last = {id(parameter) for parameter in _layers(module)[-1].parameters(recurse=False)}
        for name, tensor in tensors_of(module).items():
            cuts[f"{block}.{name}"] = BlockCut(number, ranks if id(tensor) in last else 1)
    if shared := cuts.keys() - tensors_of(model).keys():
        raise ModelError(f"train.strategy resist: {min(shared)!r} belongs to several modules; a block needs its own")
    return cuts


def let_skip(model: nn.Module, blocks: Sequence[str]) -> None:
    """Make blocks with empty parameters return their input, or zeros."""
    for name in blocks:
        block = model.get_submodule(name)
        forward = partial(_forward, stand_in=_stand_in(block) or _same)
        block.forward = MethodType(forward, block)  # type: ignore[method-assign]


def check_blocks(model: nn.Module, rows: Inputs, blocks: Sequence[str] | None, *, ranks: int) -> None:
    """Try to compute a network without its blocks; ``rows`` are like its inputs. Runs on the driver.

    Raises :class:`ModelError` when it has no residual blocks or fewer than ranks, or cannot be computed without them.
    """
    chosen = choose_blocks(model, blocks)
    if len(chosen) < ranks:
        raise ModelError(
            f"the network has {len(chosen)} residual blocks to deal to {ranks} ranks ({', '.join(chosen)}); give it"
            " more of them, or lower cluster.num_ranks"
        )
    network = copy.deepcopy(model).eval()
    let_skip(network, chosen)
    tensors = tensors_of(network)
    overwrite(network, {name: tensors[name].new_empty(0) for name in cut_blocks(network, chosen, ranks=ranks)})
    names = ", ".join(chosen)
    try:
        with torch.no_grad():
            rows = random_rows(rows)
            whole, answers = (logits_of(answer(each, rows)) for each in (copy.deepcopy(model).eval(), network))
    except Exception as error:  # whatever a network may raise
        raise ModelError(
            f"the network cannot be computed without its residual blocks ({names}): {type(error).__name__}: {error}."
            " Name those that it can do without in train.strategy.blocks"
        ) from None
    if torch.equal(answers[0], answers[1]) and not torch.equal(whole[0], whole[1]):
        raise ModelError(
            f"without its residual blocks ({names}) the network has the same outputs for all rows: at least one of"
            " them is not bypassed. Leave it out of train.strategy.blocks"
        )


def _forward(block: nn.Module, inputs: Any, *rest: Any, stand_in: Callable[[Any], Any], **named: Any) -> Any:
    if not next(block.parameters()).numel():
        return stand_in(inputs)
    return type(block).forward(block, inputs, *rest, **named)


def _same(inputs: torch.Tensor) -> torch.Tensor:
    return inputs


def _found(name: str, module: nn.Module) -> list[str]:
    if name and any(True for _ in module.children()) and _stand_in(module) is _same:
        return [name]
    children = module.named_children()
    return [block for key, child in children for block in _found(f"{name}.{key}" if name else key, child)]


def _layers(module: nn.Module) -> list[nn.Module]:
    """The modules that have parameters of their own."""
    return [layer for layer in module.modules() if next(layer.parameters(recurse=False), None) is not None]


@torch.no_grad()
def _stand_in(module: nn.Module) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """What replaces a module whose last layer is zero, by trying it on positive inputs: the identity, or zeros.

    None for a module that is not a residual block.
    """
    if not _layers(module):
        return None
    tried = copy.deepcopy(module).eval()
    layers = _layers(tried)
    weight = next(layers[0].parameters(recurse=False))
    features = weight.shape[1] * int(getattr(layers[0], "groups", 1)) if weight.ndim > 1 else weight.numel()
    generator = torch.Generator().manual_seed(0)
    for tensor in tensors_of(tried).values():  # blocks that are zero initially could not be told apart
        if tensor.is_floating_point():
            random = torch.rand(tensor.shape, generator=generator) + 0.5
            tensor.copy_(random / max(tensor[0].numel(), 1) if tensor.ndim > 1 else random)
    for parameter in layers[-1].parameters(recurse=False):
        parameter.zero_()
    for place in range(4):  # vectors, series, images, volumes
        shape = (2, features, *[PIXELS] * place)
        inputs = torch.rand(shape, generator=generator).to(weight)
        for values in (inputs, inputs.movedim(1, -1)) if place == 1 else (inputs,):  # a text has its features last
            try:
                answer = tried(values)
            except Exception:  # modules may raise anything for a wrong shape
                continue
            for stand_in in (_same, torch.zeros_like):
                if isinstance(answer, torch.Tensor) and torch.equal(answer, stand_in(values)):
                    return stand_in
    return None
