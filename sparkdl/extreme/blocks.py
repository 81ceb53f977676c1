"""What decoding knows of the classes, block by block: buckets, shares of them, and the inverted index."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from sparkdl.errors import ConfigError
from sparkdl.extreme.hashing import BucketHash, table

__all__ = ["GROUP", "ClassBlock", "ClassBlocks"]

GROUP = 64
"""Blocks are padded to whole groups of this many classes, in which decoding searches."""
KEPT_BYTES = 1 << 30
"""Blocks are kept from call to call if all of them fit in here, and hashed again otherwise."""
_COUNTED_AT_ONCE = 1 << 20
"""Classes whose counts are added up together."""


@dataclass(frozen=True, eq=False)
class ClassBlock:
    """The classes from ``start`` on, ``size`` of them, padded to whole groups."""

    start: int
    size: int
    num_buckets: int
    places: torch.Tensor
    """int32 of shape (padded, R): r B + the class's bucket in repetition r; for padding R B, one after the last."""
    weights: torch.Tensor | None
    """The shares s^w, float32 of shape (padded, R), for estimators that multiply probabilities by them."""
    bias: torch.Tensor | None
    """The sum over repetitions of w log s, float32 of shape (padded,), for estimators in logarithms."""

    @cached_property
    def lists(self) -> torch.Tensor:
        """The inverted index, int32 of shape (R B, longest): the classes of each bucket, filled up with ``size``."""
        places = self.places[: self.size].t().flatten().long()
        in_order = places.argsort(stable=True)
        sizes = places.bincount(minlength=self.places.shape[1] * self.num_buckets)
        starts = sizes.cumsum(0) - sizes
        bucket = places[in_order]
        lists = self.places.new_full((len(sizes), int(sizes.max())), self.size)
        lists[bucket, torch.arange(len(bucket), device=bucket.device) - starts[bucket]] = (in_order % self.size).int()
        return lists


class ClassBlocks:
    """All classes in blocks; ``counts`` are their training frequencies and ``weight`` the exponent of the shares."""

    def __init__(
        self,
        hashes: Sequence[BucketHash],
        num_classes: int,
        *,
        counts: npt.ArrayLike | None,
        weight: float,
        additive: bool,
    ) -> None:
        self.hashes = tuple(hashes)
        self.num_classes = num_classes
        self.weight = weight
        self.additive = additive
        self._counts: npt.NDArray[np.float64] | None = None
        if counts is not None:
            smoothed = np.asarray(counts, dtype=np.float64) + 1
            if smoothed.shape != (num_classes,):
                raise ConfigError(f"{num_classes} classes need as many counts, not an array of shape {smoothed.shape}")
            self._counts = smoothed if weight else None
        self._kept: dict[tuple[int, int, torch.device], ClassBlock] = {}

    def of_size(self, size: int, device: torch.device) -> Iterator[ClassBlock]:
        """The classes in blocks of ``size``, on a device."""
        keep = self.num_classes * len(self.hashes) * 4 <= KEPT_BYTES
        for start in range(0, self.num_classes, size):
            key = (start, size, device)
            block = self._kept.get(key) or self._make(start, min(start + size, self.num_classes), device)
            if keep:
                self._kept[key] = block
            yield block

    def _make(self, start: int, stop: int, device: torch.device) -> ClassBlock:
        repetitions, num_buckets = len(self.hashes), self.hashes[0].num_buckets
        buckets = table(self.hashes, stop, start=start)
        padded = -(-(stop - start) // GROUP) * GROUP
        places = np.full((padded, repetitions), repetitions * num_buckets, dtype=np.int32)
        places[: stop - start] = buckets.T + np.arange(repetitions, dtype=np.int32) * num_buckets
        weights = bias = None
        if self._counts is not None:
            shares = np.zeros(places.shape)
            for share, row, total in zip(shares.T, buckets, self._totals, strict=True):
                share[: stop - start] = self.weight * (np.log(self._counts[start:stop]) - np.log(total[row]))
            if self.additive:
                bias = torch.from_numpy(shares.sum(axis=1)).float().to(device)
            else:
                weights = torch.from_numpy(np.exp(shares)).float().to(device)
        return ClassBlock(start, stop - start, num_buckets, torch.from_numpy(places).to(device), weights, bias)

    @cached_property
    def _totals(self) -> npt.NDArray[np.float64]:
        """The counts of each repetition's buckets, of shape (R, B)."""
        num_buckets = self.hashes[0].num_buckets
        totals = np.zeros((len(self.hashes), num_buckets))
        if self._counts is not None:
            for start in range(0, self.num_classes, _COUNTED_AT_ONCE):
                counts = self._counts[start : start + _COUNTED_AT_ONCE]
                for total, row in zip(totals, table(self.hashes, start + len(counts), start=start), strict=True):
                    total += np.bincount(row, weights=counts, minlength=num_buckets)
        return totals
