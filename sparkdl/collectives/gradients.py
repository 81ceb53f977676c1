"""Gradients averaged over ranks while back-propagation still runs.

Parameters are packed into buckets, those of the last layers first. A bucket is reduced as soon as back-propagation has
produced all its gradients and all buckets before it have been sent (Li et al., 2020, "PyTorch Distributed", arXiv
2006.15704, section 3.2). So all ranks reduce in the same order, even if only some of them used a branch of the network.
A parameter that fills a bucket is alone in it, so that it is reduced in place, while several are copied together and
back. The buckets depend on the network alone, so that sums are taken in the same order in every run. Sparse gradients
of embedding tables, which belong to the first layers, are sent last, all together.
"""

from collections.abc import Collection, Iterable

import torch
from torch import nn

from sparkdl.collectives.averaging import Averager, Exchange, advance, finish
from sparkdl.collectives.noise import GradientNoise
from sparkdl.collectives.sparse_gradients import exchange_rows, values_of

__all__ = ["GradientAverager"]

BUCKET_BYTES = 8 << 20
"""A bucket of this size is full: its time depends on the network's bandwidth, and no longer on latency."""
FIRST_BUCKET_BYTES = 1 << 20
"""The size of the first bucket, so that the exchange starts early, and in small networks before the end."""


class GradientAverager:
    """Replaces the gradients of some parameters by their means over ranks, by an averager. Runs on ranks.

    A gradient that a rank does not have (no rows, an unused branch) counts as zero, so that no rank waits for it.
    Sparse gradients of ``tables`` stay sparse if the averager does not compress; others are made dense.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        averager: Averager,
        *,
        tables: Collection[nn.Parameter] = (),
        noise: GradientNoise | None = None,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        """``noise``, if given, measures each bucket before and after it is averaged."""
        self._averager, self._noise = averager, noise
        exchanged = [] if averager.is_identity else [parameter for parameter in parameters if parameter.requires_grad]
        self._by_rows = averager.gathers_rows
        sparse = set(tables) if self._by_rows else set()
        self._buckets = _buckets((each for each in reversed(exchanged) if each not in sparse), bucket_bytes)
        self._tables = [parameter for parameter in exchanged if parameter in sparse]
        if self._tables:
            self._buckets.append(self._tables)
        self._bucket_of = {parameter: index for index, bucket in enumerate(self._buckets) for parameter in bucket}
        self._missing: list[int] = []
        self._left: list[Exchange] = []
        """The exchanges of buckets that have been sent, in order."""
        self._last_pass = False
        for parameter in exchanged:
            parameter.register_post_accumulate_grad_hook(self._arrived)

    def begin_last_pass(self) -> None:
        """Announce that the next back-propagation completes the gradients, which can then be reduced as they arrive."""
        self._missing = [len(bucket) for bucket in self._buckets]
        self._last_pass = True

    def finish(self) -> None:
        """Reduce the remaining buckets, and wait until every gradient is the mean."""
        self._last_pass = False
        while len(self._left) < len(self._buckets):
            self._start_next()
        finish(self._left)
        self._left.clear()
        if self._noise and self._bucket_of:  # a single rank exchanges nothing
            gradients = (parameter.grad for parameter in self._bucket_of)
            self._noise.after(values_of(gradient) for gradient in gradients if gradient is not None)

    def _arrived(self, parameter: torch.Tensor) -> None:
        if not self._last_pass:
            return
        index = self._bucket_of[parameter]  # type: ignore[index]
        if index < len(self._left):
            raise RuntimeError(
                "a gradient was computed twice in one back-propagation, after it was sent to the other ranks; "
                "with torch.utils.checkpoint, set use_reentrant=False"
            )
        self._missing[index] -= 1
        while len(self._left) < len(self._buckets) and not self._missing[len(self._left)]:
            self._start_next()

    def _start_next(self) -> None:
        index = len(self._left)
        bucket, key = self._buckets[index], f"gradients.{index}"
        if self._by_rows and bucket is self._tables:
            gradients = [parameter.grad for parameter in bucket if parameter.grad is not None]
            exchange = exchange_rows(self._by_rows, bucket, key=key)
        else:
            gradients = [_dense_gradient(parameter) for parameter in bucket]
            exchange = self._averager.exchange(gradients, key=key)
        if self._noise and gradients:
            self._noise.before(map(values_of, gradients))
        advance(exchange)
        self._left.append(exchange)


def _buckets(parameters: Iterable[nn.Parameter], bucket_bytes: int) -> list[list[nn.Parameter]]:
    """The parameters in buckets, in the order in which these fill; all but the last are full."""
    full: list[list[nn.Parameter]] = []
    rest: list[nn.Parameter] = []
    for parameter in parameters:
        limit = bucket_bytes if full else min(FIRST_BUCKET_BYTES, bucket_bytes)
        if parameter.nbytes >= limit:
            full.append([parameter])
            continue
        if rest and (rest[0].dtype, rest[0].device) != (parameter.dtype, parameter.device):
            full.append(rest)
            rest = []
        rest.append(parameter)
        if sum(other.nbytes for other in rest) >= limit:
            full.append(rest)
            rest = []
    return [*full, rest] if rest else full


def _dense_gradient(parameter: nn.Parameter) -> torch.Tensor:
    """The gradient, converted to the parameter's memory layout, because ranks add up memory element by element."""
    gradient = parameter.grad
    if gradient is None:
        gradient = parameter.grad = torch.zeros_like(parameter)
    elif gradient.is_sparse or gradient.stride() != parameter.stride():
        gradient = parameter.grad = torch.empty_like(parameter).copy_(gradient.to_dense())
    return gradient
