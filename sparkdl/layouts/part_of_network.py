"""What the parts of a network that ranks keep have in common: tensors by name, to be read and overwritten."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from sparkdl.layouts.moments import moments_by_name, put_moments
from sparkdl.models import full_state

__all__ = ["PartOfNetwork"]


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
