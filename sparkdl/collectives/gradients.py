"""Gradients averaged over ranks while back-propagation still runs.

Parameters are packed into buckets, those of the last layers first; a bucket is reduced as soon as back-propagation has
produced all of its gradients and all buckets before it have left (Li et al., 2020, "PyTorch Distributed", arXiv
2006.15704, section 3.2). So all ranks reduce in one order, also when a branch of the network was used by some of them
alone. A parameter that fills a bucket has it for itself: alone it is reduced in place, where several are copied
together and back. Which gradients travel together depends on the network alone, so that sums are taken in the same
order in every run. Sparse gradients of tables, which belong to the first layers, travel last, all of them together.
"""

from collections.abc import Collection, Iterable

import torch
from torch import nn

from sparkdl.collectives.averaging import Averager, Exchange, advance, finish
from sparkdl.collectives.noise import GradientNoise
from sparkdl.collectives.sparse_gradients import exchange_rows, values_of

__all__ = ["GradientAverager"]

BUCKET_BYTES = 8 << 20
"""From here on a bucket is full: the network's bandwidth counts then and not its latency."""
FIRST_BUCKET_BYTES = 1 << 20
"""The first bucket's share, so that ranks begin to exchange early (and small networks before the end)."""


class GradientAverager:
    """The gradients of some parameters become their means over ranks, as an averager finds them. Runs on ranks.

    A gradient that a rank does not have (no rows, an unused branch) counts as zero, so that no rank waits in vain.
    Sparse gradients of ``tables`` stay sparse where the averager has values travel as they are; others are made dense.
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
        """Each bucket is seen by ``noise``, if it is given, before and after it is averaged."""
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
        """The exchanges of the buckets that have left, in their order."""
        self._last_pass = False
        for parameter in exchanged:
            parameter.register_post_accumulate_grad_hook(self._arrived)

    def begin_last_pass(self) -> None:
        """Say that the back-propagation that follows completes the gradients: they can be reduced as they come."""
        self._missing = [len(bucket) for bucket in self._buckets]
        self._last_pass = True

    def finish(self) -> None:
        """Reduce what was not reduced on the way, and wait until every gradient is the mean."""
        self._last_pass = False
        while len(self._left) < len(self._buckets):
            self._start_next()
        finish(self._left)
        self._left.clear()
        if self._noise and self._bucket_of:  # a rank that is alone exchanges nothing
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
    """The parameters in buckets that are full, in the order in which they fill, and a last one that may not be."""
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
    """The gradient, from now on laid out in memory like the parameter: ranks add up what lies at the same place."""
    gradient = parameter.grad
    if gradient is None:
        gradient = parameter.grad = torch.zeros_like(parameter)
    elif gradient.is_sparse or gradient.stride() != parameter.stride():
        gradient = parameter.grad = torch.empty_like(parameter).copy_(gradient.to_dense())
    return gradient
