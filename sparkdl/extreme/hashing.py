"""The mapping from classes to buckets: seeded hash families, whose values are computed and not stored, or a table.

Every value of a hash is a pure function of (family, seed, repetition, key), made of exact integer arithmetic and
SHA-256, and so is the same on every platform, driver and task, whichever keys are hashed together.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from sparkdl.errors import ConfigError
from sparkdl.preprocessing.hashes import murmur3_x86_32

__all__ = ["BucketHash", "BucketTable", "Buckets", "Family", "FeatureHash", "bucket_hashes", "table"]

Family = Literal["universal", "murmur3", "identity"]
Integers = npt.NDArray[np.int64]

PRIME = (1 << 61) - 1
"""A Mersenne prime, above every index in use: remainders by it are shifts and additions."""
_KEYS_AT_ONCE = 1 << 16
"""Keys hashed together: the temporaries of the arithmetic then stay in the cache."""


@dataclass(frozen=True, kw_only=True)
class _Hash:
    """A function from keys in [0, 2^61 - 1) to [0, num_values), drawn from its family by a seed and a purpose."""

    num_values: int
    purpose: str
    seed: int
    repetition: int
    family: Family

    def __call__(self, keys: npt.ArrayLike) -> Integers:
        """The values of an array of keys, of any integer type. Raises ValueError for a key out of range."""
        keys = np.asarray(keys)
        values = np.empty(keys.shape, dtype=np.int64)
        flat_keys, flat_values = keys.reshape(-1), values.reshape(-1)
        if flat_keys.size and not (flat_keys.min() >= 0 and flat_keys.max() < PRIME):
            raise ValueError(f"keys to hash must lie in [0, {PRIME}); found {flat_keys.min()} to {flat_keys.max()}")
        for begin in range(0, flat_keys.size, _KEYS_AT_ONCE):
            part = slice(begin, begin + _KEYS_AT_ONCE)
            flat_values[part] = self._many(flat_keys[part])
        return values

    def _many(self, keys: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
        if self.family == "identity":
            return keys.astype(np.uint64) % np.uint64(self.num_values)
        factor, shift = self._coefficients
        if self.family == "murmur3":
            words = np.ascontiguousarray(keys, dtype="<i8").view(np.uint8).reshape(-1, 8)
            hashed = murmur3_x86_32(words, seed=factor & 0xFFFFFFFF).astype(np.uint64)
        else:
            hashed = _affine(keys.astype(np.uint64), factor, shift)
        return hashed % np.uint64(self.num_values)

    @cached_property
    def _coefficients(self) -> tuple[int, int]:
        """A factor in [1, PRIME) and a shift in [0, PRIME), from the SHA-256 of the function's identity."""
        text = f"sparkdl {self.purpose} {self.seed} {self.repetition}".encode()
        digest = hashlib.sha256(text).digest()
        factor, shift = int.from_bytes(digest[:16], "little"), int.from_bytes(digest[16:], "little")
        return factor % (PRIME - 1) + 1, shift % PRIME


@dataclass(frozen=True)
class BucketHash:
    """The hash of one repetition: class index to bucket in [0, num_buckets). Used on driver and tasks.

    ``universal`` is ((a k + b) mod p) mod B with p = 2^61 - 1 (Carter and Wegman, 1979, section 3): two different
    classes collide with a probability of at most 1/B over the draw of a and b. ``murmur3`` is MurmurHash3_x86_32 of the
    class index as eight little-endian bytes, modulo B. ``identity`` is k mod B: with as many buckets as classes it
    hashes nothing, and a model is one-vs-all. Raises :class:`ConfigError` for fewer than one bucket or an unknown
    family.

    With ``universal``, classes with close indices hardly ever share a bucket: from one class to the next, the bucket
    moves by one of two steps, so that consecutive classes are spread like a rotation of a circle. An order of classes
    in which neighbours are similar, such as the alphabet, therefore helps. In addition to repetitions with clusters,
    ordering classes by similarity gained nothing on held-out rows.
    """

    num_buckets: int
    seed: int
    repetition: int
    family: Family = "universal"

    def __post_init__(self) -> None:
        if self.num_buckets < 1:
            raise ConfigError(f"a hash needs at least one bucket, not {self.num_buckets}")
        if self.family not in get_args(Family):
            raise ConfigError(f"the hash family {self.family!r} is not known; use one of {', '.join(get_args(Family))}")

    def buckets(self, classes: npt.ArrayLike) -> Integers:
        """The buckets of an array of class indices, in its shape."""
        return self._hash(classes)

    @property
    def _hash(self) -> _Hash:
        return _Hash(
            num_values=self.num_buckets,
            purpose="bucket",
            seed=self.seed,
            repetition=self.repetition,
            family=self.family,
        )


@dataclass(frozen=True, eq=False)
class BucketTable:
    """The buckets of one repetition as a table, where no hash function determines them."""

    num_buckets: int
    of_classes: npt.NDArray[np.int32]
    """Of shape (K,)."""

    def buckets(self, classes: npt.ArrayLike) -> Integers:
        """The buckets of an array of class indices, in its shape."""
        found: Integers = self.of_classes[np.asarray(classes)].astype(np.int64)
        return found


Buckets = BucketHash | BucketTable
"""The mapping from class index to bucket in one repetition."""


def bucket_hashes(
    num_buckets: int, repetitions: int, *, seed: int, family: Family = "universal"
) -> tuple[BucketHash, ...]:
    """The hashes of repetitions 0 to ``repetitions`` - 1."""
    return tuple(BucketHash(num_buckets, seed, repetition, family) for repetition in range(repetitions))


def table(hashes: Sequence[Buckets], stop: int, *, start: int = 0) -> npt.NDArray[np.int32]:
    """The buckets of the classes from ``start`` to ``stop``: one row per hash, one column per class."""
    classes = np.arange(start, stop, dtype=np.int64)
    found = np.empty((len(hashes), len(classes)), dtype=np.int32)
    for row, bucket_hash in zip(found, hashes, strict=True):
        row[:] = bucket_hash.buckets(classes)
    return found


@dataclass(frozen=True)
class FeatureHash:
    """Hashes sparse features to fewer dimensions: column index to [0, dimensions), by repetition another function.

    Columns that collide share their weights (Weinberger et al., 2009, arXiv 0902.2206; without its signs, which
    weights that are learned from hashed rows do not need). The family is murmur3: an affine hash maps neighbouring
    columns to arithmetic progressions, whose collisions are correlated and do not average out. Raises
    :class:`ConfigError` for fewer than one dimension.
    """

    dimensions: int
    seed: int
    repetition: int

    def __post_init__(self) -> None:
        if self.dimensions < 1:
            raise ConfigError(f"hashed features need at least one dimension, not {self.dimensions}")

    def columns(self, indices: npt.ArrayLike) -> Integers:
        """The hashed columns of an array of column indices, in its shape."""
        return _Hash(
            num_values=self.dimensions,
            purpose="feature",
            seed=self.seed,
            repetition=self.repetition,
            family="murmur3",
        )(indices)


def _affine(keys: npt.NDArray[np.uint64], factor: int, shift: int) -> npt.NDArray[np.uint64]:
    """(factor * key + shift) mod PRIME, exactly, though the product has up to 122 bits.

    Both are split into 30 high and 31 low bits. Modulo 2^61 - 1, 2^62 is 2, and the middle terms' high bits fold back
    in; the sum stays below 5 * 2^61 < 2^64.
    """
    low, half = np.uint64((1 << 31) - 1), np.uint64(31)
    prime = np.uint64(PRIME)
    key_high, key_low = keys >> half, keys & low
    factor_high, factor_low = np.uint64(factor >> 31), np.uint64(factor & int(low))
    middle = factor_high * key_low + factor_low * key_high  # below 2^62; stands 31 bits to the left
    middle = (middle >> np.uint64(30)) + ((middle & np.uint64((1 << 30) - 1)) << half)
    total = np.uint64(2) * factor_high * key_high + middle + factor_low * key_low + np.uint64(shift)
    total = (total >> np.uint64(61)) + (total & prime)
    return np.where(total >= prime, total - prime, total)
