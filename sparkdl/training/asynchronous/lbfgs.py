"""L-BFGS over vectors that live elsewhere: it sees losses and dot products alone. Runs where the coordinator does.

The direction is a combination of remembered vectors, whose coefficients follow from the dot products of all pairs of
them ("vector-free": Chen, Wang and Zhou, 2014, Large-scale L-BFGS using MapReduce, NIPS).
"""

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import line_search

__all__ = ["LBFGS", "Value", "Vectors"]

EVALUATIONS = 20  # on one line, at most
CURVATURE = 1e-6  # by which a slope has to rise, relative to its size, for a step to tell of the curvature


class Value(NamedTuple):
    """What is known of the function at a point of a line."""

    loss: float
    slope: float
    """Of the loss along the line."""


class Vectors(ABC):
    """A point, a direction, and the latest steps with what they have changed in the gradient."""

    @abstractmethod
    def move(self, rate: float) -> Value:
        """Go to point + rate * direction, and compute loss and gradient there."""

    @abstractmethod
    def accept(self, *, keep: bool) -> None:
        """Let where it has gone be the point; ``keep``: remember the step, and what it has changed in the gradient."""

    @abstractmethod
    def products(self) -> NDArray[np.float64]:
        """The dot products of k steps, k changes of the gradient, both oldest first, and the gradient.

        Of all pairs of them, so that the shape is (2k + 1, 2k + 1).
        """

    @abstractmethod
    def turn(self, coefficients: Sequence[float]) -> None:
        """Let the direction be the sum of these vectors, each times its coefficient."""


class LBFGS:
    """Minimises a function of many variables without seeing one of them (Nocedal and Wright, 2006, chapter 7)."""

    def __init__(self, vectors: Vectors) -> None:
        self._vectors = vectors
        self._loss: float | None = None
        self._straight = False
        """Whether the next step follows the gradient, since the last one has found nothing."""
        self.evaluations = 0
        """Of loss and gradient, so far."""
        self.converged = False
        """Whether no lower loss can be found."""

    def step(self) -> float:
        """Take one step; returns the loss after it."""
        if self._loss is None:
            self._loss = self._value(0.0).loss
            self._vectors.accept(keep=False)
        products = self._vectors.products()
        coefficients = _direction(products)
        downhill = np.isfinite(coefficients).all() and products[-1] @ coefficients < 0
        if self._straight or not downhill:
            coefficients = np.concatenate([np.zeros(len(products) - 1), _direction(products[-1:, -1:])])
        if products[-1, -1] == 0:
            self.converged = True
            return self._loss
        slope = float(products[-1] @ coefficients)
        self._vectors.turn(coefficients.tolist())
        self._loss = self._follow(Value(self._loss, slope))
        return self._loss

    def _follow(self, start: Value) -> float:
        """Go along the direction to where the strong Wolfe conditions hold, or else to the lowest point on the way."""
        found = {0.0: start}
        here = 0.0

        def at(rate: NDArray[np.float64]) -> Value:
            nonlocal here
            if (asked := float(rate[0])) not in found:
                found[asked] = self._value(asked)
                here = asked
            return found[asked]

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it has found nothing is seen
            best = line_search(
                lambda rate: at(rate).loss,
                lambda rate: np.array([at(rate).slope]),
                np.zeros(1),
                np.ones(1),
                np.array([start.slope]),
                start.loss,
                maxiter=EVALUATIONS,
            )[0]
        if best is None or not found.get(best, start).loss < start.loss:
            best = min(found, key=lambda rate: found[rate].loss)
        if best != here:
            self._value(best)
        rise = found[best].slope - start.slope
        self._vectors.accept(keep=rise > CURVATURE * -start.slope)
        self.converged = self._straight and best == 0.0
        self._straight = best == 0.0
        return found[best].loss

    def _value(self, rate: float) -> Value:
        self.evaluations += 1
        value = self._vectors.move(rate)
        return value if math.isfinite(value.loss) and math.isfinite(value.slope) else Value(math.inf, math.nan)


def _direction(products: NDArray[np.float64]) -> NDArray[np.float64]:
    """The coefficients of L-BFGS's direction, by its two loops; without steps, of a unit vector down the gradient."""
    count = len(products) // 2
    coefficients = np.zeros(len(products))
    coefficients[-1] = -1
    weights = np.zeros(count)
    with np.errstate(divide="ignore", invalid="ignore"):  # a direction that is no number is not taken
        for pair in reversed(range(count)):
            weights[pair] = coefficients @ products[:, pair] / products[pair, count + pair]
            coefficients[count + pair] -= weights[pair]
        if count:
            coefficients *= products[count - 1, 2 * count - 1] / products[2 * count - 1, 2 * count - 1]
        else:
            coefficients /= np.sqrt(products[-1, -1])
        for pair in range(count):
            change = coefficients @ products[:, count + pair] / products[pair, count + pair]
            coefficients[pair] += weights[pair] - change
    return coefficients
