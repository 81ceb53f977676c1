"""What the parts of a network that ranks keep have in common: tensors by name, to be read and overwritten."""

from collections.abc import Container, Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim import Optimizer

from sparkdl.layouts.moments import moments_by_name, put_moments
from sparkdl.models import full_state

__all__ = ["PartOfNetwork", "clip_parts", "square_of_norm", "square_of_parts"]


class _Ranks(Protocol):
    """Those that have a network together."""

    def all_reduce(self, tensor: torch.Tensor, *, op: Any = "mean") -> torch.Tensor:
        """The sum of all ranks' tensors, for ``op="sum"``."""


@torch.no_grad()
def clip_parts(model: nn.Module, cut: Container[str], ranks: _Ranks, largest: float) -> None:
    """Shrink gradients whose norm is larger, of the ranks' parts of ``cut`` parameters and of the rest together."""
    gradients = {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
    norm = square_of_parts(gradients, cut, ranks).sqrt()
    factor = (largest / (norm + 1e-6)).clamp(max=1.0)
    for gradient in gradients.values():
        gradient.mul_(factor.to(gradient.device))


def square_of_parts(gradients: Mapping[str, torch.Tensor], cut: Container[str], ranks: _Ranks) -> torch.Tensor:
    """That of the norm of gradients by name, of which those of ``cut`` parameters lie in parts on these ranks."""
    parts = [each for name, each in gradients.items() if name in cut]
    rest = [each for name, each in gradients.items() if name not in cut]
    return ranks.all_reduce(square_of_norm(parts).reshape(1), op="sum") + square_of_norm(rest)


def square_of_norm(gradients: Iterable[torch.Tensor]) -> torch.Tensor:
    """A tensor without dimensions; 0 where there are none."""
    return nn.utils.get_total_norm(list(gradients)).square()


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
