"""Magnitude pruning: sets ever more of the smallest weights to zero (``train.pruning: {kind: magnitude}``).

A weight that is zero stays zero. So there is no other state: the mask is where weights are zero, also in a checkpoint.
Synchronous replicas have the same weights, and therefore the same masks. Runs on ranks.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from sparkdl.settings.pruning_options import MagnitudeOptions

__all__ = ["MagnitudePruning", "sparsity_at"]

STAIRS = 100
"""The number of equal steps in which sparsity grows; few, because each has to find the smallest weights, which takes as
long as an optimizer step."""


def sparsity_at(options: MagnitudeOptions, epochs: float) -> float:
    """The share of weights that are zero after ``epochs``; it grows fast at first, then slowly (Zhu, Gupta, 2017)."""
    span = options.end_epoch - options.begin_epoch
    done = min(max((epochs - options.begin_epoch) / span, 0.0), 1.0)
    return options.sparsity * math.floor(STAIRS * (1 - (1 - done) ** 3)) / STAIRS


class MagnitudePruning:
    """Prunes each parameter of two dimensions or more by itself; others are left out."""

    def __init__(self, options: MagnitudeOptions, parameters: Iterable[nn.Parameter]) -> None:
        self._options = options
        self._weights = [parameter for parameter in parameters if parameter.ndim > 1]

    @contextmanager
    @torch.no_grad()
    def step(self, before: float, after: float) -> Iterator[None]:
        """The context of the optimizer's step that leads from ``before`` to ``after``, both in epochs."""
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
