"""The first layer on a CPU, in loops that Numba compiles when they are first used.

Each row of weights is read once for the sums, and read and written once for a step; its gradient never leaves the
cache. Every sum has an order of its own, so that results do not depend on threads or on the width of registers.
"""

import numpy as np
import numpy.typing as npt

from sparkdl.extreme.first_layer import Occurrences, Step
from sparkdl.extreme.jit import compiled, in_threads

__all__ = ["add_up", "step_rows"]

Floats = npt.NDArray[np.float32]

LANES = 16
"""Partial sums of squares, which fill two registers."""


def add_up(table: Floats, found: Occurrences, sums: Floats) -> None:
    """Add the weighted rows of the table, of shape (features, w), to ``sums``, of shape (n, w)."""
    in_threads(_add_up, len(sums), table, found.features, found.ends, found.places, found.values, sums)


def step_rows(table: Floats, squares: Floats, found: Occurrences, gradient: Floats, step: Step) -> None:
    """Take a step with each row that occurs; ``gradient`` is that of the sums."""
    entries = (found.feature_ends, found.row_of, found.feature_values)
    numbers = tuple(map(np.float32, (step.rate, step.memory, step.weight, step.epsilon)))
    in_threads(_step_rows, len(found.features), table, squares, found.features, *entries, gradient, *numbers)


@compiled()
def _add_up(start, stop, table, features, ends, places, values, sums):  # type: ignore[no-untyped-def]
    for row in range(start, stop):
        target = sums[row]
        for entry in range(ends[row], ends[row + 1]):
            value, source = values[entry], table[features[places[entry]]]
            for column in range(len(target)):
                target[column] += value * source[column]


@compiled()
def _step_rows(  # type: ignore[no-untyped-def]
    start, stop, table, squares, features, ends, row_of, values, gradient, rate, memory, weight, epsilon
):
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
