"""Sums that do not depend on the order of the summands: a float64 together with its rounding error.

Such a sum has twice the precision of a float64 (Ogita, Rump, Oishi, 2005, Accurate Sum and Dot Product, algorithm 4.4),
so that the rounded result is the same however rows are distributed to tasks.
"""

from fractions import Fraction
from math import isfinite, nan

import numpy as np
from numpy.typing import NDArray

__all__ = ["ExactSums", "added", "exact", "sums_of", "sums_of_squares"]

ExactSums = NDArray[np.float64]
"""Sums of shape (2, sums): the rounded numbers, and their rounding errors."""
_SPLITTER = 2.0**27 + 1
"""Cuts a float64 into halves of 26 bits, whose products are exact (Dekker, 1971)."""


def sums_of(values: NDArray[np.float64], rest: NDArray[np.float64] | None = None) -> ExactSums:
    """The sum of each column of a matrix; ``rest`` has the rounding errors of its values."""
    high = values
    low = np.zeros(values.shape) if rest is None else rest
    if not len(high):
        return np.zeros((2, values.shape[1]))
    with np.errstate(all="ignore"):  # infinite values stay infinite
        while len(high) > 1:
            half, odd = divmod(len(high), 2)
            total, left = _two_sum(high[:half], high[half : 2 * half])
            left += low[:half] + low[half : 2 * half]
            if odd:
                total, left = np.concatenate([total, high[-1:]]), np.concatenate([left, low[-1:]])
            high, low = total, left
        return np.stack(_two_sum(high[0], low[0]))


def sums_of_squares(values: NDArray[np.float64]) -> ExactSums:
    """The sum of the squares of each column of a matrix."""
    with np.errstate(all="ignore"):
        scaled = _SPLITTER * values
        upper = scaled - (scaled - values)
        lower = values - upper
        squares = values * values
        rest = ((upper * upper - squares) + 2 * upper * lower) + lower * lower
    return sums_of(squares, np.asarray(rest, np.float64))


def added(first: ExactSums, second: ExactSums) -> ExactSums:
    """The sums over all rows, from the sums over two parts."""
    with np.errstate(all="ignore"):
        total, left = _two_sum(first[0], second[0])
        return np.stack(_two_sum(total, left + first[1] + second[1]))


def exact(sums: ExactSums, place: int) -> Fraction | float:
    """A sum as an exact fraction; NaN if it is NaN or infinite."""
    high, low = sums[:, place].tolist()
    return Fraction(high) + Fraction(low) if isfinite(high) and isfinite(low) else nan


def _two_sum(
    first: NDArray[np.float64], second: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The rounded sum, and its exact rounding error (Knuth, The Art of Computer Programming, 4.2.2)."""
    total = first + second
    moved = total - first
    return total, (first - (total - moved)) + (second - moved)
