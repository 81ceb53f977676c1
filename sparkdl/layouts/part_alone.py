"""A rank's part of a network, to be measured without the other ranks. Runs on the driver."""

import copy
from typing import Any, NamedTuple

import torch
from torch import nn

from sparkdl.inputs.tensors import Inputs, answer
from sparkdl.layouts.block_edges import RanksOfReplica
from sparkdl.layouts.tensor_parallel import cut
from sparkdl.layouts.tensor_plan import TensorPlan
from sparkdl.models import in_mode, logits_of

__all__ = ["Alone", "Exchanged", "exchanged_bytes", "part_alone"]


class Exchanged(NamedTuple):
    """What the ranks of a replica exchange in a step, in the forward pass and in the back-propagation."""

    sums: list[int]
    """Bytes of each tensor that is all-reduced."""
    shares: list[int]
    """Bytes of each tensor that is gathered or scattered, of which each rank has another part."""


def part_alone(model: nn.Module, plan: TensorPlan) -> nn.Module:
    """The largest part of a network, which is not changed. The part's outputs are meaningless."""
    return _part_of(model, plan, Alone(plan.ranks))


def exchanged_bytes(model: nn.Module, plan: TensorPlan, rows: Inputs) -> Exchanged:
    """What a step over these rows exchanges, except gradients of parameters."""
    alone = Alone(plan.ranks)
    part = _part_of(model, plan, alone)
    with in_mode(part, training=True), torch.enable_grad(), torch.random.fork_rng(devices=[]):
        answered = logits_of(answer(part, rows)).sum()
        torch.autograd.grad(answered, [each for each in part.parameters() if each.requires_grad], allow_unused=True)
    return Exchanged(alone.added, alone.parts)


def _part_of(model: nn.Module, plan: TensorPlan, ranks: RanksOfReplica) -> nn.Module:
    """A rank's part, which shares the network's tensors where they are not cut."""
    tensors: dict[int, Any] = {id(tensor): tensor for tensor in [*model.parameters(), *model.buffers()]}
    part = copy.deepcopy(model, tensors)
    cut(part, plan, ranks)
    return part


class Alone:
    """Stands for the ranks of a replica in a single process, and records exchanges."""

    rank = 0

    def __init__(self, count: int) -> None:
        self._count = count
        self.added: list[int] = []
        self.parts: list[int] = []
        """See :class:`Exchanged`."""

    def all_reduce(self, tensor: torch.Tensor, *, op: Any = "mean") -> torch.Tensor:
        """Own values, as if all others were zero."""
        self.added.append(tensor.nbytes)
        return tensor.clone()

    def all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Own values, as if all ranks had the same."""
        self.parts.append(tensor.nbytes)
        return [tensor] * self._count

    def scatter_sum(self, own: torch.Tensor, whole: torch.Tensor) -> None:
        """Own values, as if all others were zero."""
        self.parts.append(own.nbytes)
        own.copy_(whole[: len(own)])
