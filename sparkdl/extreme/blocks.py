"""What decoding knows of the classes: their buckets, all of them block by block or those of a few, and their priors."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from sparkdl.errors import ConfigError
from sparkdl.extreme.hashing import BucketHash, table

__all__ = ["GROUP", "ClassBlock", "Classes", "Prior"]

GROUP = 64
"""Blocks are padded to whole groups of this many classes, in which decoding searches."""
KEPT_BYTES = 1 << 30
"""The buckets of all classes are kept from call to call if they fit in here, and hashed again otherwise."""
_COUNTED_AT_ONCE = 1 << 20
"""Classes whose counts are added up together."""


@dataclass(frozen=True, eq=False)
class ClassBlock:
    """The classes from ``start`` on, padded to whole groups."""

    start: int
    places: torch.Tensor
    """int32 of shape (padded, R): r B + the class's bucket in repetition r; for padding R B, one after the last."""


@dataclass(frozen=True, eq=False)
class Prior:
    """log s_r(k)^w, the weighted share of class k in its bucket's training counts, as a sum of two terms."""

    of_classes: torch.Tensor
    """w log c_k of the smoothed counts c, float32 of shape (K,)."""
    of_buckets: torch.Tensor
    """-w log of the sum of c over each bucket, float32 of shape (R, B)."""

    def to(self, device: torch.device) -> "Prior":
        """The same on a device."""
        return Prior(self.of_classes.to(device), self.of_buckets.to(device))


class Classes:
    """All classes: their buckets by ``hashes``, and their prior from training ``counts`` with the exponent ``weight``.

    Raises :class:`ConfigError` for counts of another number of classes.
    """

    def __init__(
        self, hashes: Sequence[BucketHash], number: int, *, counts: npt.ArrayLike | None, weight: float
    ) -> None:
        self.hashes = tuple(hashes)
        self.number = number
        self.weight = weight
        self._counts: npt.NDArray[np.float64] | None = None
        if counts is not None:
            smoothed = np.asarray(counts, dtype=np.float64) + 1
            if smoothed.shape != (number,):
                raise ConfigError(f"{number} classes need as many counts, not an array of shape {smoothed.shape}")
            self._counts = smoothed if weight else None
        self._on_device: dict[torch.device, torch.Tensor] = {}
        self._prior_on_device: dict[torch.device, Prior] = {}

    def blocks(self, size: int, device: torch.device) -> Iterator[ClassBlock]:
        """The classes in blocks of ``size``, which is whole groups, on a device."""
        kept = self.kept(device)
        for start in range(0, self.number, size):
            stop = min(start + size, self.number)
            places = self._places(start, stop).to(device) if kept is None else kept[start : start + size]
            yield ClassBlock(start, places)

    def places_of(self, numbers: torch.Tensor) -> torch.Tensor:
        """The places of some classes, as in :class:`ClassBlock`: int32 of shape (len(numbers), R)."""
        kept = self.kept(numbers.device)
        if kept is not None:
            return kept.index_select(0, numbers)
        asked, num_buckets = numbers.cpu().numpy(), self.hashes[0].num_buckets
        buckets = [each.buckets(asked) + r * num_buckets for r, each in enumerate(self.hashes)]
        return torch.from_numpy(np.stack(buckets, axis=1).astype(np.int32)).to(numbers.device)

    def kept(self, device: torch.device) -> torch.Tensor | None:
        """The places of all classes, as in :class:`ClassBlock`, if they are few enough to be kept; otherwise None."""
        if self.number * len(self.hashes) * 4 > KEPT_BYTES:
            return None
        if device not in self._on_device:
            self._on_device[device] = self._places(0, self.number).to(device)
        return self._on_device[device]

    def prior(self, device: torch.device) -> Prior | None:
        """The prior on a device; None without counts, or if the exponent is 0."""
        if self._prior is not None and device not in self._prior_on_device:
            self._prior_on_device[device] = self._prior.to(device)
        return self._prior_on_device.get(device)

    def _places(self, start: int, stop: int) -> torch.Tensor:
        repetitions, num_buckets = len(self.hashes), self.hashes[0].num_buckets
        padded = -(-(stop - start) // GROUP) * GROUP
        places = np.full((padded, repetitions), repetitions * num_buckets, dtype=np.int32)
        buckets = table(self.hashes, stop, start=start)
        places[: stop - start] = buckets.T + np.arange(repetitions, dtype=np.int32) * num_buckets
        return torch.from_numpy(places)

    @cached_property
    def _prior(self) -> Prior | None:
        if self._counts is None:
            return None
        num_buckets = self.hashes[0].num_buckets
        totals = np.zeros((len(self.hashes), num_buckets))
        for start in range(0, self.number, _COUNTED_AT_ONCE):
            counts = self._counts[start : start + _COUNTED_AT_ONCE]
            for total, row in zip(totals, table(self.hashes, start + len(counts), start=start), strict=True):
                total += np.bincount(row, weights=counts, minlength=num_buckets)
        totals[totals == 0] = 1  # of a bucket that no class falls into, and nobody asks for
        return Prior(
            torch.from_numpy(self.weight * np.log(self._counts)).float(),
            torch.from_numpy(-self.weight * np.log(totals)).float(),
        )
