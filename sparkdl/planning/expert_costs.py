"""Memory and messages of ranks that share the experts of a network. Runs on the driver."""

from dataclasses import replace
from math import ceil
from typing import NamedTuple

import torch
from torch import nn

from sparkdl.inputs.tensors import Inputs, answer
from sparkdl.models import Experts, in_mode
from sparkdl.planning.memory import RankMemory

__all__ = ["ExpertBytes", "bytes_of_experts", "bytes_of_rows", "memory_with_experts"]


class ExpertBytes(NamedTuple):
    """Bytes of the weights of experts."""

    all: float
    own: float
    """The bytes of the rank that has most experts."""

    def kept(self, network: float) -> float:
        """The share that this rank keeps of a network of ``network`` bytes."""
        return 1 - (self.all - self.own) / network


def bytes_of_experts(model: nn.Module, ranks: int) -> ExpertBytes:
    """The bytes of a network's experts, and of those of one of ``ranks`` ranks."""
    found = [each for module in _experts(model) for each in module.parameters()]
    own = sum(each.nbytes * ceil(len(each) / ranks) / len(each) for each in found)
    return ExpertBytes(sum(each.nbytes for each in found), own)


def memory_with_experts(whole: RankMemory, experts: ExpertBytes) -> RankMemory:
    """The memory of a rank with some of the experts; ``whole`` is that of a rank with a whole replica."""
    share = experts.kept(whole.weights)
    return replace(
        whole, weights=share * whole.weights, gradients=share * whole.gradients, moments=share * whole.moments
    )


def bytes_of_rows(model: nn.Module, rows: Inputs) -> list[int]:
    """By mixture, the bytes of the experts' inputs for some rows."""
    sizes: list[int] = []

    def note(_: nn.Module, given: tuple[torch.Tensor, ...]) -> None:
        sizes.append(given[0].nbytes)

    hooks = [each.register_forward_pre_hook(note) for each in _experts(model)]
    try:
        with in_mode(model, training=True), torch.no_grad():
            answer(model, rows)
    finally:
        for hook in hooks:
            hook.remove()
    return sizes


def _experts(model: nn.Module) -> list[Experts]:
    return [each for each in model.modules() if isinstance(each, Experts)]
