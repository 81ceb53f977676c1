"""The common part of layouts: a rank's tensors by name, to be read and overwritten."""

from collections.abc import Container, Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim import Optimizer

from sparkdl.layouts.moments import moments_by_name, put_moments
from sparkdl.models import full_state

__all__ = ["PartOfNetwork", "clip_parts", "square_of_norm", "square_of_parts"]


class _Ranks(Protocol):
    """The ranks that share a network."""

    def all_reduce(self, tensor: torch.Tensor, *, op: Any = "mean") -> torch.Tensor:
        """The sum of all ranks' tensors, for ``op="sum"``."""


@torch.no_grad()
def clip_parts(model: nn.Module, cut: Container[str], ranks: _Ranks, largest: float) -> None:
    """Scale gradients down if their norm, over all ranks' parts of ``cut`` parameters and all others, is larger."""
    gradients = {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
    norm = square_of_parts(gradients, cut, ranks).sqrt()
    factor = (largest / (norm + 1e-6)).clamp(max=1.0)
    for gradient in gradients.values():
        gradient.mul_(factor.to(gradient.device))


def square_of_parts(gradients: Mapping[str, torch.Tensor], cut: Container[str], ranks: _Ranks) -> torch.Tensor:
    """The squared norm of gradients, by name; those of ``cut`` parameters are split over these ranks."""
    parts = [each for name, each in gradients.items() if name in cut]
    rest = [each for name, each in gradients.items() if name not in cut]
    return ranks.all_reduce(square_of_norm(parts).reshape(1), op="sum") + square_of_norm(rest)


def square_of_norm(gradients: Iterable[torch.Tensor]) -> torch.Tensor:
    """The squared norm of gradients, as a scalar tensor; 0 without gradients."""
    return nn.utils.get_total_norm(list(gradients)).square()


class PartOfNetwork:
    """A module with this rank's part of a network's weights, under the names of the whole. Runs on ranks."""

    model: nn.Module
    """Returns the whole network's outputs. All ranks that share the network call it together."""

    def weights(self) -> dict[str, torch.Tensor]:
        """By name, this rank's weights and all buffers, not copied."""
        return full_state(self.model)

    def moments(self, optimizer: Optimizer) -> dict[str, Any]:
        """By name, the optimizer's state of these weights (:mod:`sparkdl.layouts.moments`), not copied."""
        return moments_by_name(self.model, optimizer)

    @torch.no_grad()
    def put(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Overwrite the tensors of :meth:`weights`, or some of them."""
        for name, tensor in self.weights().items():
            if name in weights:
                tensor.copy_(weights[name])

    def put_moments(self, optimizer: Optimizer, moments: Mapping[str, Any]) -> None:
        """Overwrite the optimizer's state of :meth:`moments`."""
        put_moments(self.model, optimizer, moments)
