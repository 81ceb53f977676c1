"""Decoding on a CPU, for scores that are sums: loops that Numba compiles when they are first used.

Scores are exact. Both ways to the best classes add up the float32 values of all repetitions for each class that they
answer with, in the order of repetitions; what they look at before only decides which classes these can be.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sparkdl.extreme.jit import compiled, in_threads
from sparkdl.extreme.joint import JointBuckets

__all__ = ["Terms", "scan", "search"]

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[Any]

TILE = 32
"""Rows that are scanned together: their sums of 16 bits are two registers, and their table (R B x 64 bytes, 512 KB for
R = 16, B = 512) lies in a core's cache. With 8 bits it is half as large, but too many classes have to be scored."""
AT_ONCE = 8
"""Rows whose softmax is computed together: their values (R B x 32 bytes, 256 KB) are still in the cache when they are
searched."""
LARGEST = 65_535
"""Of 16 bits without a sign."""
FAST = {"nnan", "nsz", "reassoc", "contract"}
"""What the compiler may do to floats, so that it can vectorise sums and maxima; no class's score is computed so."""
LEAST = 1e-30
"""Sums and average distances below this, or above its inverse, are not what one calculates with in float32."""


class Terms(NamedTuple):
    """What is added up for a row and a class."""

    values: Floats
    """Of shape (R, n, B), for each row and bucket."""
    of_buckets: Floats
    """Of shape (R, B): the same for all rows."""
    of_classes: Floats
    """Of shape (K,)."""
    normalisers: Floats
    """Of shape (n,), to be filled with the sum over repetitions of log sum exp of the values; empty if not needed."""


def scan(terms: Terms, places: Integers, scores: Floats, numbers: Integers, *, first: int) -> None:
    """Merge the classes from ``first`` on, with the ``places`` r B + bucket, into the best ones of each row so far.

    These are in ``scores`` and ``numbers``, of shape (n, k), best first.

    For 32 rows at a time, the distance of each bucket from the best bucket of its repetition is rounded down to a
    number of steps, of which the sum over all repetitions fits into 16 bits. This sum is a lower bound of a class's
    distance from the best score that there could be; only classes that it allows to be among the k best are scored.
    """
    last = min(first + len(places), len(terms.of_classes))
    terms = terms._replace(of_classes=terms.of_classes[first:last])
    in_threads(_scan(len(terms.values)), len(scores), *terms, places, first, scores, numbers, at_once=TILE)


def search(
    terms: Terms, places: Integers, joint: JointBuckets, buckets: int, scores: Floats, numbers: Integers
) -> None:
    """Merge the classes that ``joint`` finds in so many best ``buckets``, as :func:`scan` merges all of them.

    ``places`` are those of all classes. A class that a row finds more than once is merged once.
    """
    filled, starts, classes = (each.numpy() for each in joint.index)
    index = (joint.filled_bits, len(filled) // joint.groups, starts, classes, joint.groups, joint.joined)
    in_threads(_search, len(scores), *terms, places, index, buckets, scores, numbers, at_once=AT_ONCE)


@compiled(fastmath=FAST)
def _log_sum_exp(values):  # type: ignore[no-untyped-def]
    """The logarithm of a softmax's denominator."""
    high, mass = np.float32(0), np.float32(0)
    for bucket in range(len(values)):
        mass += _exp(values[bucket])
    if not LEAST < mass < 1 / LEAST:  # only then does it matter how large the values are
        high, mass = values.max(), np.float32(0)
        for bucket in range(len(values)):
            mass += _exp(values[bucket] - high)
    return high + np.float32(np.log(mass))


@compiled(inline="always")
def _exp(x):  # type: ignore[no-untyped-def]
    """e^x in float32, to the last two bits: Cephes' expf, which unlike the C library's can be vectorised."""
    x = min(max(x, np.float32(-87.0)), np.float32(88.0))  # where float32 ends
    power = np.float32(np.floor(x * np.float32(1.44269504) + np.float32(0.5)))
    x = x - power * np.float32(0.693359375) + power * np.float32(2.12194440e-4)
    tail = np.float32(1.9875691500e-4) * x + np.float32(1.3981999507e-3)
    tail = tail * x + np.float32(8.3334519073e-3)
    tail = tail * x + np.float32(4.1665795894e-2)
    tail = tail * x + np.float32(1.6666665459e-1)
    tail = tail * x + np.float32(5.0000001201e-1)
    scale = np.int32((np.int32(power) + np.int32(127)) << np.int32(23)).view(np.float32)
    return (tail * x * x + x + np.float32(1)) * scale


@compiled(inline="always")
def _in_order(bits):  # type: ignore[no-untyped-def]
    """From a float32's bits to an integer in the same order, and back: a maximum of integers can be vectorised."""
    return np.int32(bits ^ np.int32(np.int32(bits >> np.int32(31)) & np.int32(0x7FFFFFFF)))


@compiled()
def _score(values, row, of_buckets, places, number):  # type: ignore[no-untyped-def]
    """The sum over repetitions for one row and one class."""
    num_buckets = of_buckets.shape[1]
    total = np.float32(0)
    for repetition in range(values.shape[0]):
        bucket = places[number, repetition] - repetition * num_buckets
        total += values[repetition, row, bucket] + of_buckets[repetition, bucket]
    return total


@compiled()
def _insert(row, score, number, scores, numbers):  # type: ignore[no-untyped-def]
    """Put a class that is better than the last one among a row's best ones."""
    place = scores.shape[1] - 1
    while place > 0 and scores[row, place - 1] < score:
        scores[row, place], numbers[row, place] = scores[row, place - 1], numbers[row, place - 1]
        place -= 1
    scores[row, place], numbers[row, place] = score, number


@compiled()
def _search(  # type: ignore[no-untyped-def]
    start, stop, values, of_buckets, of_classes, normalisers, places, joint, buckets, scores, numbers
):
    repetitions, _, num_buckets = values.shape
    filled, slots, starts, classes, groups, joined = joint
    own = np.empty((repetitions, num_buckets), np.float32)
    flat = own.reshape(-1)
    best = np.empty((groups * joined, buckets), np.int64)
    together = np.empty(buckets**joined, np.int64)
    hit = np.empty(groups * len(together), np.int64)
    found = np.empty(len(hit), np.int64)
    for row in range(start, stop):
        if len(normalisers) and (row - start) % AT_ONCE == 0:
            _normalise(row, min(row + AT_ONCE, stop), values, normalisers)
        _values_of(row, values, of_buckets, own)
        _leaders(own, best)
        hits = 0
        for group in range(groups):
            count = _combine(best[group * joined : (group + 1) * joined], num_buckets, together)
            for place in range(count):  # without a branch that nobody could predict
                slot = group * slots + (together[place] if together[place] < slots else together[place] % slots)
                hit[hits] = slot
                hits += (filled[slot >> 3] >> (slot & 7)) & 1
        count = 0
        for place in range(hits):
            begin, end = starts[hit[place]], starts[hit[place] + 1]
            if count + end - begin > len(found):
                found = np.append(found[:count], np.empty(count + end - begin, np.int64))
            for entry in range(begin, end):
                found[count] = classes[entry]
                count += 1
        for place in range(count):  # not while they are looked up, so that a core waits for many of them at once
            number = found[place]
            if _among(number, row, numbers):
                continue
            score = of_classes[number]
            for repetition in range(repetitions):
                score += flat[places[number, repetition]]
            if score > scores[row, -1]:
                _insert(row, score, number, scores, numbers)


@compiled(fastmath=FAST)
def _normalise(start, stop, values, normalisers):  # type: ignore[no-untyped-def]
    """Fill in the normalisers, in the order in which the values lie in memory."""
    normalisers[start:stop] = 0
    for repetition in range(values.shape[0]):
        for row in range(start, stop):
            normalisers[row] += _log_sum_exp(values[repetition, row])


@compiled()
def _values_of(row, values, of_buckets, own):  # type: ignore[no-untyped-def]
    """One row's values side by side: where they come from, those of all repetitions share the same lines of a cache."""
    for repetition in range(len(values)):
        source, term = values[repetition, row], of_buckets[repetition]
        for bucket in range(len(source)):
            own[repetition, bucket] = source[bucket] + term[bucket]


@compiled()
def _leaders(own, best):  # type: ignore[no-untyped-def]
    """The best bucket in each of the equal parts of a repetition's buckets."""
    num_buckets, parts = own.shape[1], best.shape[1]
    size, more = num_buckets // parts, num_buckets % parts
    bits = own.view(np.int32)
    low = np.int32(1)
    while low < num_buckets:
        low = np.int32(2 * low)
    low = np.int32(low - 1)
    for repetition in range(len(best)):
        for part in range(parts):
            begin = part * size + min(part, more)  # as PyTorch splits a tensor
            those = bits[repetition, begin : begin + size + (part < more)]
            leader = np.int32(-(2**31))
            for place in range(len(those)):
                key = _in_order(those[place])
                key = np.int32(np.int32(key & np.int32(~low)) | np.int32(place))
                leader = key if key > leader else leader
            best[repetition, part] = begin + (leader & low)


@compiled()
def _combine(best, num_buckets, together):  # type: ignore[no-untyped-def]
    """The joint buckets of all combinations of one bucket from each repetition; how many there are."""
    repetitions, parts = best.shape
    together[0], count = 0, 1
    for repetition in range(repetitions):
        for place in range(count - 1, -1, -1):  # from the end, for what is extended lies in the same memory
            before = together[place] * num_buckets
            for part in range(parts):
                together[place * parts + part] = before + best[repetition, part]
        count *= parts
    return count


@compiled()
def _among(number, row, numbers):  # type: ignore[no-untyped-def]
    found = False
    for place in range(numbers.shape[1]):
        found |= numbers[row, place] == number
    return found


@cache
def _scan(repetitions: int) -> Callable[..., None]:
    """The scan for so many repetitions: to be vectorised over rows, their sum has to be unrolled."""
    most = LARGEST // (repetitions + 1)

    @compiled()
    def scan(  # type: ignore[no-untyped-def]
        start, stop, values, of_buckets, of_classes, normalisers, places, first, scores, numbers
    ):
        distances = np.empty((repetitions * values.shape[2], TILE), np.uint16)
        of_class = np.empty(len(of_classes), np.uint16)
        limits = np.empty(TILE, np.uint16)
        bits = np.uint32(1) << np.arange(TILE).astype(np.uint32)
        highest_of_class = of_classes.max()
        for begin in range(start, stop, TILE):
            rows = min(TILE, stop - begin)
            highest, usual = _highest(begin, rows, values, of_buckets, normalisers)
            steps = np.float32(most) / (np.float32(2) * usual)
            of_all = steps.min()
            _distances(begin, values, of_buckets, highest, steps, most, distances)
            for number in range(len(of_classes)):
                of_class[number] = min((highest_of_class - of_classes[number]) * of_all, np.float32(most))
            possible = highest.sum(axis=0) + highest_of_class
            for row in range(TILE):
                limits[row] = _limit(possible[row], scores[begin + row, -1], steps[row]) if row < rows else 0
            for number in range(len(of_classes)):
                may_be = np.uint16(0)
                for row in range(distances.shape[1]):  # a constant here would be unrolled, and then not vectorised
                    distance = of_class[number]
                    for repetition in range(repetitions):
                        distance = np.uint16(distance + distances[np.uint32(places[number, repetition]), row])
                    may_be = np.uint16(may_be | np.uint16(distance <= limits[row]))
                if not may_be:
                    continue
                of_which = np.uint32(0)
                for row in range(distances.shape[1]):
                    distance = of_class[number]
                    for repetition in range(repetitions):
                        distance = np.uint16(distance + distances[np.uint32(places[number, repetition]), row])
                    of_which = np.uint32(of_which | (bits[row] if distance <= limits[row] else np.uint32(0)))
                for row in range(rows):
                    if not of_which & bits[row]:
                        continue
                    score = _score(values, begin + row, of_buckets, places, number) + of_classes[number]
                    if score > scores[begin + row, -1]:
                        _insert(begin + row, score, first + number, scores, numbers)
                        limits[row] = _limit(possible[row], scores[begin + row, -1], steps[row])

    return scan  # type: ignore[no-any-return]


@compiled(fastmath=FAST)
def _highest(begin, rows, values, of_buckets, normalisers):  # type: ignore[no-untyped-def]
    """The best value of each repetition and row, and how far below it a row's buckets are on average."""
    repetitions, _, num_buckets = values.shape
    highest = np.empty((repetitions, rows), np.float32)
    keys = highest.view(np.int32)
    usual = np.zeros(rows, np.float32)
    own = np.empty(num_buckets, np.float32)
    bits = own.view(np.int32)
    normalisers[begin : begin + rows] = 0
    for repetition in range(repetitions):
        for row in range(rows):
            source, term = values[repetition, begin + row], of_buckets[repetition]
            total = np.float32(0)
            for bucket in range(num_buckets):
                own[bucket] = source[bucket] + term[bucket]
                total += own[bucket]
            high = _in_order(bits[0])
            for bucket in range(num_buckets):
                high = max(high, _in_order(bits[bucket]))
            keys[repetition, row] = _in_order(high)
            if len(normalisers):
                normalisers[begin + row] += _log_sum_exp(source)
            usual[row] += (highest[repetition, row] - total / np.float32(num_buckets)) / np.float32(repetitions)
    for row in range(rows):
        usual[row] = usual[row] if LEAST < usual[row] < 1 / LEAST else np.float32(1)
    return highest, usual


@compiled(fastmath=FAST)
def _distances(begin, values, of_buckets, highest, steps, most, distances):  # type: ignore[no-untyped-def]
    """How far below the best value of its repetition each one is, in steps; rows come to lie beside each other."""
    repetitions, rows = highest.shape
    num_buckets = values.shape[2]
    as_read = np.empty((rows, num_buckets), distances.dtype)
    for repetition in range(repetitions):
        for row in range(rows):
            high, step = highest[repetition, row], steps[row]
            for bucket in range(num_buckets):
                value = values[repetition, begin + row, bucket] + of_buckets[repetition, bucket]
                distance = (high - value) * step
                as_read[row, bucket] = np.int32(distance if distance < np.float32(most) else np.float32(most))
        for bucket in range(num_buckets):
            for row in range(rows):
                distances[repetition * num_buckets + bucket, row] = as_read[row, bucket]


@compiled()
def _limit(possible, least, steps):  # type: ignore[no-untyped-def]
    """The largest distance, in steps, of a class that scores more than ``least``; one more for what is rounded."""
    return min(max((possible - least) * steps + np.float32(1), np.float32(0)), np.float32(LARGEST))
