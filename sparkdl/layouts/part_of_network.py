"""What the parts of a network that ranks keep have in common: tensors by name, to be read and overwritten."""

from collections.abc import Container, Mapping
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim import Optimizer

from sparkdl.layouts.moments import moments_by_name, put_moments
from sparkdl.models import full_state

__all__ = ["PartOfNetwork", "clip_parts"]


class _Ranks(Protocol):
    """Those that have a network together."""

    def all_reduce(self, tensor: torch.Tensor, *, op: Any = "mean") -> torch.Tensor:
        """The sum of all ranks' tensors, for ``op="sum"``."""


@torch.no_grad()
def clip_parts(model: nn.Module, cut: Container[str], ranks: _Ranks, largest: float) -> None:
    """Shrink gradients whose norm is larger, of the ranks' parts of ``cut`` parameters and of the rest together."""
    cut_ones: list[torch.Tensor] = []
    whole_ones: list[torch.Tensor] = []
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            (cut_ones if name in cut else whole_ones).append(parameter.grad)
    squares = ranks.all_reduce(nn.utils.get_total_norm(cut_ones).square().reshape(1), op="sum")
    norm = (squares + nn.utils.get_total_norm(whole_ones).square()).sqrt()
    factor = (largest / (norm + 1e-6)).clamp(max=1.0)
    for gradient in [*cut_ones, *whole_ones]:
        gradient.mul_(factor.to(gradient.device))


class PartOfNetwork:
    """A module with this rank's part of a network's weights, under the names of the whole. Runs on ranks."""

    model: nn.Module
    """It answers as the whole network does; all ranks that have parts of it call it together."""

    def weights(self) -> dict[str, torch.Tensor]:
        """What this rank has of the weights, and all buffers, by name: the very tensors."""
        return full_state(self.model)

    def moments(self, optimizer: Optimizer) -> dict[str, Any]:
        """What the optimizer keeps of them, by name (:mod:`sparkdl.layouts.moments`): the very tensors."""
        return moments_by_name(self.model, optimizer)

    @torch.no_grad()
    def put(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Overwrite what :meth:`weights` gives, or some of it."""
        for name, tensor in self.weights().items():
            if name in weights:
                tensor.copy_(weights[name])

    def put_moments(self, optimizer: Optimizer, moments: Mapping[str, Any]) -> None:
        """Overwrite what :meth:`moments` gives."""
        put_moments(self.model, optimizer, moments)
