"""MurmurHash3 and XXH64 of all values of an array at once; with seed 42 they are Spark's hashes.

MurmurHash3 (32 bits, x86) is https://github.com/aappleby/smhasher, XXH64 https://github.com/Cyan4973/xxHash. Texts are
hashed as UTF-8. MurmurHash3 of texts is that of ``HashingTF``, which differs from Spark SQL's ``hash`` in the last
bytes.
"""

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

__all__ = ["murmur3", "murmur3_of_ints", "murmur3_x86_32", "xxhash64", "xxhash64_of_numbers"]

SEED = 42
"""The seed that Spark uses."""

Words32 = NDArray[np.uint32]
Words64 = NDArray[np.uint64]


def murmur3(texts: pa.Array) -> NDArray[np.int32]:
    """MurmurHash3 of each text, with Spark's seed."""
    data = _Bytes.of(texts)
    hashes = np.full(len(texts), SEED, np.uint32)
    blocks = data.lengths // 4
    for block in range(int(blocks.max(initial=0))):
        rows = np.flatnonzero(blocks > block)
        hashes[rows] = _with_word(hashes[rows], data.numbers(rows, 4 * block, np.uint32))
    rest = data.lengths % 4
    tails = np.zeros(len(texts), np.uint32)
    for place in range(3):
        rows = np.flatnonzero(rest > place)
        tails[rows] |= data.bytes(rows, 4 * blocks[rows] + place).astype(np.uint32) << np.uint32(8 * place)
    return _with_tail(hashes, tails, data.lengths.astype(np.uint32)).view(np.int32)


def murmur3_of_ints(numbers: NDArray[np.int32]) -> NDArray[np.int32]:
    """MurmurHash3 of each 32-bit number, with Spark's seed."""
    words = np.ascontiguousarray(numbers, dtype="<i4").view(np.uint8).reshape(-1, 4)
    return murmur3_x86_32(words, seed=SEED).view(np.int32)


def murmur3_x86_32(keys: NDArray[np.uint8], *, seed: int) -> Words32:
    """MurmurHash3 of many keys of one length.

    ``keys`` are of shape (number of keys, bytes per key).
    """
    count, length = keys.shape
    hashes = np.full(count, seed, dtype=np.uint32)
    whole = length // 4
    words = np.ascontiguousarray(keys[:, : whole * 4]).view("<u4").astype(np.uint32)
    for word in words.T:
        hashes = _with_word(hashes, word)
    tails = np.zeros(count, dtype=np.uint32)
    for position in range(whole * 4, length):
        tails |= keys[:, position].astype(np.uint32) << np.uint32(8 * (position % 4))
    return _with_tail(hashes, tails, np.uint32(length))


def _with_word(hashes: Words32, words: Words32) -> Words32:
    """Update MurmurHash3 with four bytes."""
    mixed: Words32 = _left(hashes ^ _scrambled(words), 13) * np.uint32(5) + np.uint32(0xE6546B64)
    return mixed


def _with_tail(hashes: Words32, tails: Words32, lengths: Words32 | np.uint32) -> Words32:
    """Finish MurmurHash3 with the last bytes, fewer than four, and the number of all bytes."""
    hashes = hashes ^ _scrambled(tails) ^ lengths
    hashes = (hashes ^ (hashes >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    hashes = (hashes ^ (hashes >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return hashes ^ (hashes >> np.uint32(16))


_P1, _P2, _P3, _P4, _P5 = np.array(
    [0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5], np.uint64
)


def xxhash64(texts: pa.Array, seeds: Words64 | None = None) -> NDArray[np.int64]:
    """XXH64 of each text, with Spark's seed, or with one seed per text. Null counts as an empty text."""
    data = _Bytes.of(texts)
    if seeds is None:
        seeds = np.full(len(texts), SEED, np.uint64)
    hashes = seeds + _P5
    stripes = data.lengths // 32
    rows = np.flatnonzero(stripes)
    if len(rows):
        hashes[rows] = _striped(data, rows, stripes, seeds[rows])
    hashes += data.lengths.astype(np.uint64)
    places = 32 * stripes
    for _ in range(3):
        rows = np.flatnonzero(data.lengths - places >= 8)
        mixed = hashes[rows] ^ _round(np.zeros(len(rows), np.uint64), data.numbers(rows, places[rows], np.uint64))
        hashes[rows] = _left(mixed, 27) * _P1 + _P4
        places[rows] += 8
    rows = np.flatnonzero(data.lengths - places >= 4)
    mixed = hashes[rows] ^ (data.numbers(rows, places[rows], np.uint32).astype(np.uint64) * _P1)
    hashes[rows] = _left(mixed, 23) * _P2 + _P3
    places[rows] += 4
    for _ in range(3):
        rows = np.flatnonzero(data.lengths > places)
        mixed = hashes[rows] ^ (data.bytes(rows, places[rows]).astype(np.uint64) * _P5)
        hashes[rows] = _left(mixed, 11) * _P1
        places[rows] += 1
    _finish(hashes)
    found: NDArray[np.int64] = hashes.view(np.int64)
    return found


def xxhash64_of_numbers(numbers: NDArray[np.signedinteger[Any]], seeds: Words64) -> None:
    """Replace each seed by the XXH64 of a number's 4 or 8 bytes.

    ``seeds`` is of shape (rows,), or (hashes, rows) for hashes that differ by their seeds alone.
    """
    if numbers.dtype.itemsize == 4:
        mixed, turned, factor, summand = numbers.view(np.uint32).astype(np.uint64) * _P1, 23, _P2, _P3
    else:
        mixed, turned, factor, summand = _round(np.zeros(1, np.uint64), numbers.view(np.uint64)), 27, _P1, _P4
    seeds += _P5 + np.uint64(numbers.dtype.itemsize)
    seeds ^= mixed
    left = seeds << np.uint64(turned)
    seeds >>= np.uint64(64 - turned)
    seeds |= left
    seeds *= factor
    seeds += summand
    _finish(seeds, left)


def _finish(hashes: Words64, spare: Words64 | None = None) -> None:
    """The final mixing of the bits, in place."""
    spare = np.empty_like(hashes) if spare is None else spare
    for bits, factor in ((33, _P2), (29, _P3)):
        np.right_shift(hashes, np.uint64(bits), out=spare)
        hashes ^= spare
        hashes *= factor
    np.right_shift(hashes, np.uint64(32), out=spare)
    hashes ^= spare


class _Bytes(NamedTuple):
    """The bytes of all texts, concatenated, with some zeros at the end."""

    content: NDArray[np.uint8]
    begins: NDArray[np.int64]
    lengths: NDArray[np.int64]

    @classmethod
    def of(cls, texts: pa.Array) -> "_Bytes":
        _, offsets, content = texts.buffers()
        places = np.frombuffer(offsets, np.int32, len(texts) + 1, texts.offset * 4).astype(np.int64)
        data = np.frombuffer(content, np.uint8) if content is not None else np.empty(0, np.uint8)
        return cls(np.concatenate([data, np.zeros(8, np.uint8)]), places[:-1], np.diff(places))

    def bytes(self, rows: NDArray[np.int64], places: Any) -> Any:
        return self.content[self.begins[rows] + places]

    def numbers(self, rows: NDArray[np.int64], places: Any, kind: type[Any]) -> Any:
        """Little-endian numbers at some places of some texts."""
        size = np.dtype(kind).itemsize
        begins = self.begins[rows] + places
        return self.content[begins[:, None] + np.arange(size)].view(np.dtype(kind).newbyteorder("<"))[:, 0]


def _scrambled(words: Words32) -> Any:
    return _left(words * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)


def _left(words: Any, bits: int) -> Any:
    """Rotate bits to the left."""
    size = words.dtype.type
    return (words << size(bits)) | (words >> size(8 * words.itemsize - bits))


def _round(state: Words64, words: Words64) -> Any:
    return _left(state + words * _P2, 31) * _P1


def _striped(data: _Bytes, rows: NDArray[np.int64], stripes: NDArray[np.int64], seeds: Words64) -> Any:
    """The state of XXH64 after all whole blocks of 32 bytes."""
    lanes = np.array([seeds + _P1 + _P2, seeds + _P2, seeds, seeds - _P1])
    for stripe in range(int(stripes[rows].max())):
        active = np.flatnonzero(stripes[rows] > stripe)
        for lane in range(4):
            words = data.numbers(rows[active], 32 * stripe + 8 * lane, np.uint64)
            lanes[lane, active] = _round(lanes[lane, active], words)
    found = _left(lanes[0], 1) + _left(lanes[1], 7) + _left(lanes[2], 12) + _left(lanes[3], 18)
    for lane in range(4):
        found = (found ^ _round(np.zeros(len(rows), np.uint64), lanes[lane])) * _P1 + _P4
    return found
