"""Compiled loops for linear classifiers, one per class: training, and the margins of the classes in a shortlist.

Training is dual coordinate descent (Hsieh et al., 2008, "A Dual Coordinate Descent Method for Large-scale Linear SVM",
algorithms 1 and 3) for the squared hinge loss with squared weights; the bias is the weight of a feature that is always
1. Sparse rows are (features, values, ends). Numba compiles the loops when they are first used.
"""

import numpy as np

from sparkdl.extreme.loops import compiled

__all__ = ["fit_classes", "margins"]

MOST_PASSES = 20
TOLERANCE = 0.1
"""The spread of projected gradients at which training stops; smaller ones changed nothing on held-out rows."""

MANY = 16
"""Weights per feature of a row from which on binary search is faster than a scan."""


@compiled()
def fit_classes(  # type: ignore[no-untyped-def]
    features, values, ends, width, rows, signs, class_ends, seeds, cost, smallest
):
    """Classifiers of C classes: (features, values, ends) of their weights, in ascending order, and their biases.

    Class c learns from the rows ``rows[class_ends[c]:class_ends[c + 1]]``, which have a sign of 1 where they are the
    class's and of -1 elsewhere; without any, its margin is -1 everywhere. Weights below ``smallest`` are dropped
    afterwards.
    """
    classes = len(class_ends) - 1
    numbers = np.full(width, -1, np.int32)
    biases = np.full(classes, -1, np.float32)
    kept_features, kept_values = np.empty(1024, np.int32), np.empty(1024, np.float32)
    kept_ends = np.zeros(classes + 1, np.int64)
    kept = 0
    for place in range(classes):
        own = slice(class_ends[place], class_ends[place + 1])
        if own.stop > own.start:
            names, own_rows = _gather(features, values, ends, rows[own], numbers)
            weights, biases[place] = _descend(own_rows, len(names), signs[own], seeds[place], cost)
            for number in np.argsort(names):
                weight = weights[number]
                if weight == 0 or abs(weight) < smallest:
                    continue
                if kept == len(kept_features):
                    kept_features, kept_values = _longer(kept_features), _longer(kept_values)
                kept_features[kept], kept_values[kept] = names[number], weight
                kept += 1
        kept_ends[place + 1] = kept
    return kept_features[:kept], kept_values[:kept], kept_ends, biases


@compiled()
def _gather(features, values, ends, rows, numbers):  # type: ignore[no-untyped-def]
    """Copy some rows next to each other, with their features renumbered; returns also the features' original numbers.

    Training iterates over a class's rows many times; with its weights they then stay in a core's cache. ``numbers``,
    one per feature, is scratch memory, -1 before and after the call.
    """
    own_ends = np.zeros(len(rows) + 1, np.int64)
    for place, row in enumerate(rows):
        own_ends[place + 1] = own_ends[place] + ends[row + 1] - ends[row]
    own_features, own_values = np.empty(own_ends[-1], np.int32), np.empty(own_ends[-1], np.float32)
    names = np.empty(own_ends[-1], np.int32)
    found, to = 0, 0
    for row in rows:
        for entry in range(ends[row], ends[row + 1]):
            feature = features[entry]
            if numbers[feature] < 0:
                numbers[feature], names[found] = found, feature
                found += 1
            own_features[to], own_values[to] = numbers[feature], values[entry]
            to += 1
    for number in range(found):
        numbers[names[number]] = -1
    return names[:found], (own_features, own_values, own_ends)


@compiled()
def _longer(array):  # type: ignore[no-untyped-def]
    longer = np.empty(2 * len(array), array.dtype)
    longer[: len(array)] = array
    return longer


@compiled()
def _descend(rows, width, signs, seed, cost):  # type: ignore[no-untyped-def]
    """The weights and the bias of one class."""
    features, values, ends = rows
    np.random.seed(seed)
    weights, bias = np.zeros(width, np.float32), np.float32(0)
    diagonal = np.float32(0.5 / cost)
    squares = np.full(len(signs), 1 + diagonal, np.float32)  # the bias, too, has a feature
    for row in range(len(signs)):
        for entry in range(ends[row], ends[row + 1]):
            squares[row] += values[entry] * values[entry]
    dual = np.zeros(len(signs), np.float32)
    order = np.arange(len(signs))
    active = len(signs)
    highest = np.inf
    for _ in range(MOST_PASSES):
        largest, least = -np.inf, np.inf
        place = 0
        while place < active:
            chosen = place + np.random.randint(active - place)
            order[place], order[chosen] = order[chosen], order[place]
            row = order[place]
            sign = signs[row]
            margin = bias
            for entry in range(ends[row], ends[row + 1]):
                margin += values[entry] * weights[features[entry]]
            gradient = sign * margin - 1 + diagonal * dual[row]
            if dual[row] == 0:
                if gradient > highest:  # such a row will hardly matter any more: it is dropped
                    active -= 1
                    order[place], order[active] = order[active], order[place]
                    continue
                gradient = min(gradient, 0.0)
            largest, least = max(largest, gradient), min(least, gradient)
            if gradient != 0:
                before = dual[row]
                dual[row] = max(before - gradient / squares[row], 0.0)
                change = np.float32((dual[row] - before) * sign)
                bias += change
                for entry in range(ends[row], ends[row + 1]):
                    weights[features[entry]] += change * values[entry]
            place += 1
        highest = largest if largest > 0 else np.inf
        if largest - least <= TOLERANCE:
            if active == len(signs):
                break
            active, highest = len(signs), np.inf  # once more with all of them
    return weights, bias


@compiled()
def margins(  # type: ignore[no-untyped-def]
    start, stop, features, values, ends, width, candidates, kept_features, kept_values, kept_ends, biases, scales, found
):
    """The margins of each row's candidates, both of shape (n, S), from row ``start`` on.

    ``scales``, of shape (K,), has a factor for the weights of each class. For classes with many weights,
    it is faster to search for those of a row's few features.
    """
    dense = np.zeros(width, np.float32)
    for row in range(start, stop):
        for entry in range(ends[row], ends[row + 1]):
            dense[features[entry]] += values[entry]
        for place in range(candidates.shape[1]):
            number = candidates[row, place]
            margin = np.float32(0)
            first, last = kept_ends[number], kept_ends[number + 1]
            if last - first < MANY * (ends[row + 1] - ends[row]):
                for entry in range(first, last):
                    margin += np.float32(kept_values[entry]) * dense[kept_features[entry]]
            else:
                own = kept_features[first:last]
                for entry in range(ends[row], ends[row + 1]):
                    at = first + np.searchsorted(own, features[entry])
                    if at < last and kept_features[at] == features[entry]:
                        margin += np.float32(kept_values[at]) * values[entry]
            found[row, place] = biases[number] + scales[number] * margin
        for entry in range(ends[row], ends[row + 1]):
            dense[features[entry]] = 0
