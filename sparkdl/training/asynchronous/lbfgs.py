"""L-BFGS over remote vectors, of which it sees only losses and dot products. Runs where the coordinator does.

The direction is a linear combination of remembered vectors. Its coefficients follow from the dot products of all pairs
of these vectors ("vector-free": Chen, Wang and Zhou, 2014, Large-scale L-BFGS using MapReduce, NIPS).
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

EVALUATIONS = 20  # at most, in one line search
CURVATURE = 1e-6  # least relative rise of the slope for a step to say something of the curvature


class Value(NamedTuple):
    """Loss and slope at one point of a line search."""

    loss: float
    slope: float
    """Derivative of the loss along the line."""


class Vectors(ABC):
    """A point, a direction, and the latest steps with the changes of the gradient that they made."""

    @abstractmethod
    def move(self, rate: float) -> Value:
        """Go to point + rate * direction, and compute loss and gradient there."""

    @abstractmethod
    def accept(self, *, keep: bool) -> None:
        """Make the place of the last :meth:`move` the point; ``keep``: remember the step and the gradient's change."""

    @abstractmethod
    def products(self) -> NDArray[np.float64]:
        """All dot products, (2k + 1, 2k + 1), of k steps, k changes of the gradient, and the gradient.

        Steps and changes are in order of age, the oldest first.
        """

    @abstractmethod
    def turn(self, coefficients: Sequence[float]) -> None:
        """Set the direction to the sum of the vectors of :meth:`products`, each times its coefficient."""


class LBFGS:
    """Minimises a function of remote variables by L-BFGS (Nocedal and Wright, 2006, chapter 7)."""

    def __init__(self, vectors: Vectors) -> None:
        self._vectors = vectors
        self._loss: float | None = None
        self._straight = False
        """Whether the next step follows the gradient, because the last one found no lower loss."""
        self.evaluations = 0
        """How often loss and gradient have been computed so far."""
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
        """Search the line for a point of the strong Wolfe conditions; if none is found, take the lowest point seen."""
        found = {0.0: start}
        here = 0.0

        def at(rate: NDArray[np.float64]) -> Value:
            nonlocal here
            if (asked := float(rate[0])) not in found:
                found[asked] = self._value(asked)
                here = asked
            return found[asked]

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the result says that none was found
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
    """Coefficients of L-BFGS's direction, by its two-loop recursion; without steps, the negative unit gradient."""
    count = len(products) // 2
    coefficients = np.zeros(len(products))
    coefficients[-1] = -1
    weights = np.zeros(count)
    with np.errstate(divide="ignore", invalid="ignore"):  # a direction with NaN is not used
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
