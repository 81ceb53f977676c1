"""The smallest weights of a network become zero, more and more of them: ``train.pruning: {kind: magnitude}``.

A weight that is zero stays so, which is all that there is to remember: masks are where weights are zero, also in a
checkpoint. Replicas in lockstep have the same weights, and so the same masks. Runs on ranks.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from sparkdl.settings.pruning_options import MagnitudeOptions

__all__ = ["MagnitudePruning", "sparsity_at"]

STAIRS = 100
"""In how many equal steps the sparsity grows: to find the smallest weights takes as long as an optimizer's step."""


def sparsity_at(options: MagnitudeOptions, epochs: float) -> float:
    """The part of weights that is zero after so many epochs: quickly more at first, then slowly (Zhu and Gupta)."""
    span = options.end_epoch - options.begin_epoch
    done = min(max((epochs - options.begin_epoch) / span, 0.0), 1.0)
    return options.sparsity * math.floor(STAIRS * (1 - (1 - done) ** 3)) / STAIRS


class MagnitudePruning:
    """What is done to some parameters in each step: to those with two dimensions or more, one by one."""

    def __init__(self, options: MagnitudeOptions, parameters: Iterable[nn.Parameter]) -> None:
        self._options = options
        self._weights = [parameter for parameter in parameters if parameter.ndim > 1]

    @contextmanager
    @torch.no_grad()
    def step(self, before: float, after: float) -> Iterator[None]:
        """Around the optimizer's step that leads from so many epochs to so many."""
        now, then = sparsity_at(self._options, before), sparsity_at(self._options, after)
        masks = [weight != 0 for weight in self._weights] if now else []
        with torch.enable_grad():
            yield
        for weight, mask in zip(self._weights, masks, strict=False):
            weight.mul_(mask)
        if then > now:
            for weight in self._weights:
                _zero_smallest(weight, then)


def _zero_smallest(weight: torch.Tensor, share: float) -> None:
    count = round(share * weight.numel())
    if count:
        sizes = weight.abs()
        weight.mul_(sizes > sizes.flatten().kthvalue(count).values)
