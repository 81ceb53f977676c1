"""Gradients averaged over ranks while back-propagation still runs.

Parameters are packed into buckets, those of the last layers first; a bucket is reduced as soon as back-propagation has
produced all of its gradients (Li et al., 2020, "PyTorch Distributed", arXiv 2006.15704, section 3.2). Which gradients
travel together depends on the network alone, so that sums are taken in the same order in every run.
"""

from collections.abc import Callable, Iterable

import torch
from torch import nn

from sparkdl.collectives.collectives import Collectives

__all__ = ["GradientAverager"]

BUCKET_BYTES = 8 << 20
"""From here on a bucket is full: the network's bandwidth counts then and not its latency."""
FIRST_BUCKET_BYTES = 1 << 20
"""The first bucket's share, so that ranks begin to exchange early (and small networks before the end)."""


class GradientAverager:
    """The gradients of some parameters become their means over ranks. Runs on ranks.

    A gradient that a rank does not have (no rows, an unused branch) counts as zero, so that no rank waits in vain.
    Sparse gradients are made dense.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], collectives: Collectives, *, bucket_bytes: int = BUCKET_BYTES
    ) -> None:
        self._collectives, self._bucket_bytes = collectives, bucket_bytes
        self._buckets: list[list[nn.Parameter]] = []
        self._bucket_of: dict[nn.Parameter, int] = {}
        self._missing: list[int] = []
        self._waiting: dict[int, Callable[[], None]] = {}
        self._last_pass = False
        if collectives.size > 1:
            for parameter in reversed([parameter for parameter in parameters if parameter.requires_grad]):
                self._add(parameter)

    def begin_last_pass(self) -> None:
        """Say that the back-propagation that follows completes the gradients: they can be reduced as they come."""
        self._missing = [len(bucket) for bucket in self._buckets]
        self._last_pass = True

    def finish(self) -> None:
        """Reduce what was not reduced on the way, and wait until every gradient is the mean."""
        self._last_pass = False
        for index in range(len(self._buckets)):
            if index not in self._waiting:
                self._start(index)
        for wait in self._waiting.values():
            wait()
        self._waiting.clear()

    def _add(self, parameter: nn.Parameter) -> None:
        bucket = self._buckets[-1] if self._buckets else []
        limit = min(FIRST_BUCKET_BYTES, self._bucket_bytes) if len(self._buckets) == 1 else self._bucket_bytes
        full = sum(other.nbytes for other in bucket) >= limit
        alike = all((other.dtype, other.device) == (parameter.dtype, parameter.device) for other in bucket)
        if not bucket or full or not alike:
            bucket = []
            self._buckets.append(bucket)
        bucket.append(parameter)
        self._bucket_of[parameter] = len(self._buckets) - 1
        parameter.register_post_accumulate_grad_hook(self._arrived)

    def _arrived(self, parameter: torch.Tensor) -> None:
        if not self._last_pass:
            return
        index = self._bucket_of[parameter]  # type: ignore[index]
        if index in self._waiting:
            raise RuntimeError(
                "a gradient was computed twice in one back-propagation, after it was sent to the other ranks; "
                "with torch.utils.checkpoint, set use_reentrant=False"
            )
        self._missing[index] -= 1
        if not self._missing[index]:
            self._start(index)

    def _start(self, index: int) -> None:
        bucket = self._buckets[index]
        for parameter in bucket:
            parameter.grad = _dense_like(parameter)
        gradients = [parameter.grad for parameter in bucket if parameter.grad is not None]
        self._waiting[index] = self._collectives.start_mean(gradients, name=f"gradients.{index}")


def _dense_like(parameter: nn.Parameter) -> torch.Tensor:
    """The gradient, laid out in memory like the parameter: ranks add up what lies at the same place."""
    gradient = parameter.grad
    if gradient is None:
        return torch.zeros_like(parameter)
    if gradient.is_sparse:
        gradient = gradient.to_dense()
    if gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter).copy_(gradient)
