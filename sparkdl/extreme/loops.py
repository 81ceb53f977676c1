"""Loops for a CPU, in as many threads as PyTorch would use: decoding where scores are sums, and wide first layers.

Numba compiles them when they are first used, which takes a task a second and 100 MB. They share one file because Numba
looks at the age of a loop's own file to know whether what it has kept on disk is out of date.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt
import torch

__all__ = ["Terms", "add_up", "compiled", "in_threads", "scan", "step_rows"]

Float32Array = npt.NDArray[np.float32]
IntegerArray = npt.NDArray[Any]

TILE = 32
"""Rows that are scanned together: their sums of 16 bits are two registers, and their table (R B x 64 bytes, 512 KB for
R = 16, B = 512) lies in a core's cache. With 8 bits it is half as large, but too many classes have to be scored."""
LARGEST = 65_535
"""Of 16 bits without a sign."""
FAST = {"nnan", "nsz", "reassoc", "contract"}
"""What the compiler may do to floats, so that it can vectorise sums and maxima; no class's score is computed so."""
LEAST = 1e-30
"""Sums and average distances below this, or above its inverse, are not what one calculates with in float32."""
DE_BRUIJN = np.uint32(0x077CB531)
"""Times a single bit, its five highest bits are another number for each bit (Leiserson, Prokop and Randall, 1998)."""
LANES = 16
"""Partial sums of squares, which fill two registers."""


class Terms(NamedTuple):
    """What is added up for a row and a class."""

    values: Float32Array
    """Of shape (R, n, B), for each row and bucket."""
    of_buckets: Float32Array
    """Of shape (R, B): the same for all rows."""
    of_classes: Float32Array
    """Of shape (K,)."""
    normalisers: Float32Array
    """Of shape (n,), to be filled with the sum over repetitions of log sum exp of the values; empty if not needed."""


def scan(terms: Terms, places: IntegerArray, scores: Float32Array, numbers: IntegerArray, *, first: int) -> None:
    """Merge the classes from ``first`` on, with the ``places`` r B + bucket, into the best ones of each row so far.

    These are in ``scores`` and ``numbers``, of shape (n, k), best first. A score is exact: the sum of all repetitions'
    float32 values, in their order.

    For 32 rows at a time, the distance of each bucket from the best bucket of its repetition is rounded down to a
    number of steps, of which the sum over all repetitions fits into 16 bits. This sum is a lower bound of a class's
    distance from the best score that there could be; only classes that it allows to be among the k best are scored.
    """
    last = min(first + len(places), len(terms.of_classes))
    terms = terms._replace(of_classes=terms.of_classes[first:last])
    in_threads(_scan(len(terms.values)), len(scores), *terms, places, first, scores, numbers, at_once=TILE)


def compiled(**options: Any) -> Any:
    """A decorator that compiles a function at its first call, and keeps the result on disk where it can."""

    def decorate(function: Callable[..., Any]) -> Any:
        try:
            return numba.njit(nogil=True, cache=True, **options)(function)
        except RuntimeError:  # neither the package's folder nor the user's cache folder can be written to
            return numba.njit(nogil=True, **options)(function)

    return decorate


def in_threads(function: Callable[..., None], count: int, *arguments: Any, at_once: int = 1) -> None:
    """Call ``function(start, stop, ...)`` for about equal parts of ``count`` rows, each of whole groups of rows."""
    threads = min(torch.get_num_threads(), -(-count // at_once))
    if threads <= 1:
        function(0, count, *arguments)
        return
    bounds = [at_once * (part * -(-count // at_once) // threads) for part in range(threads)] + [count]
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(function, *part, *arguments) for part in pairwise(bounds)]:
            done.result()


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
        rows_of_bits = np.empty(TILE, np.int64)
        for row in range(TILE):
            rows_of_bits[np.uint32(bits[row] * DE_BRUIJN) >> np.uint32(27)] = row
        highest_of_class = of_classes.max()
        for begin in range(start, stop, TILE):
            rows = min(TILE, stop - begin)
            of_rows = np.uint32((np.uint64(1) << np.uint64(rows)) - np.uint64(1))
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
                of_which = np.uint32(of_which & of_rows)
                while of_which:
                    lowest = np.uint32(of_which & (~of_which + np.uint32(1)))
                    of_which = np.uint32(of_which ^ lowest)
                    row = rows_of_bits[np.uint32(lowest * DE_BRUIJN) >> np.uint32(27)]
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
def add_up(start, stop, table, features, ends, places, values, sums):  # type: ignore[no-untyped-def]
    """Add weighted rows of the table, of shape (features, w), to ``sums``, of shape (n, w), from row ``start`` on.

    The other arrays are those of :class:`~sparkdl.extreme.first_layer.Occurrences`. Every sum has an order of its own,
    so that results do not depend on threads or on the width of registers.
    """
    for row in range(start, stop):
        target = sums[row]
        for entry in range(ends[row], ends[row + 1]):
            value, source = values[entry], table[features[places[entry]]]
            for column in range(len(target)):
                target[column] += value * source[column]


@compiled()
def step_rows(  # type: ignore[no-untyped-def]
    start, stop, table, squares, features, ends, row_of, values, gradient, rate, memory, weight, epsilon
):
    """Take a :class:`~sparkdl.extreme.first_layer.Step` with the features from ``start`` on that occur in a batch.

    ``gradient`` is that of the sums. Weights are read and written once, and their gradient never leaves the cache.
    """
    parts = squares.shape[1]
    outputs = table.shape[1] // parts
    own = np.empty(table.shape[1], np.float32)
    for number in range(start, stop):
        own[:] = 0
        for entry in range(ends[number], ends[number + 1]):
            value, source = values[entry], gradient[row_of[entry]]
            for column in range(len(own)):
                own[column] += value * source[column]
        feature = features[number]
        for part in range(parts):
            change = own[part * outputs : (part + 1) * outputs]
            mean = _sum_of_squares(change) / np.float32(outputs)
            mean = memory * squares[feature, part] + (np.float32(1) - memory) * mean
            squares[feature, part] = mean
            scale = rate / (np.sqrt(mean / weight) + epsilon)
            weights = table[feature, part * outputs : (part + 1) * outputs]
            for column in range(len(change)):
                weights[column] -= scale * change[column]


@compiled()
def _sum_of_squares(values):  # type: ignore[no-untyped-def]
    lanes = np.zeros(LANES, np.float32)
    whole = len(values) // LANES * LANES
    for begin in range(0, whole, LANES):
        group = values[begin : begin + LANES]
        for lane in range(LANES):
            lanes[lane] += group[lane] * group[lane]
    total = np.float32(0)
    for lane in range(LANES):
        total += lanes[lane]
    for place in range(whole, len(values)):
        total += values[place] * values[place]
    return total
