"""A server's part of L-BFGS: it holds slices of the vectors, and sums gradients independently of their order."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from typing_extensions import override

from sparkdl.parameters.part import Part
from sparkdl.parameters.rules import Rule

__all__ = ["QuasiNewton", "answers_of"]

FRACTION_BITS = 44
"""Fraction bits of the fixed-point numbers as which gradients are summed. Unlike floating-point sums, these do not
depend on the order. The last bit is 6e-14."""
LARGEST = 2.0**18
"""Sums of gradients that may exceed this become NaN."""


class QuasiNewton(Rule):
    """The values are those at which loss and gradient are evaluated: the point, or a place on a line through it.

    Pushes are shares of the gradient there. All other vectors are float64.
    """

    def __init__(self, values: torch.Tensor, *, memory: int) -> None:
        """``memory`` is the number of steps that are remembered."""
        super().__init__(values)
        self._memory = memory
        self._point = values.clone()
        self._direction = torch.zeros_like(values, dtype=torch.float64)
        self._gradient = torch.zeros_like(self._direction)
        """The gradient at the point."""
        self._sum = torch.zeros_like(values, dtype=torch.int64)
        """The gradient at the values, times 2 to the power of ``FRACTION_BITS``."""
        self._bound = 0.0
        """An upper bound of the sum's values."""
        self._pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        """Steps, each with its change of the gradient; the oldest first."""

    @override
    def merge(self, pushed: torch.Tensor, *, rate: float, staleness: int, weight: float) -> None:
        self._bound += float(pushed.abs().max()) if pushed.numel() else 0.0
        if self._bound < LARGEST:
            self._sum += pushed.double().mul_(2.0**FRACTION_BITS).round_().long()

    def move(self, rate: float) -> None:
        """Set the values to point + rate * direction, and the sum of gradients to zero."""
        self.values.copy_(self._point + rate * self._direction)
        self._sum.zero_()
        self._bound = 0.0

    def slope(self) -> float:
        """The dot product of the gradient at the values with the direction."""
        return float(self._found().dot(self._direction))

    def accept(self, *, keep: bool) -> None:
        """Make the values the point; ``keep``: remember the step."""
        step, gradient = self.values.double() - self._point, self._found()
        if keep:
            self._pairs = [*self._pairs, (step, gradient - self._gradient)][-self._memory :]
        self._point.copy_(self.values)
        self._gradient = gradient

    def forget(self) -> None:
        """Forget all steps."""
        self._pairs.clear()

    def products(self) -> torch.Tensor:
        """The dot products of all pairs of vectors: steps, changes and gradient."""
        vectors = torch.stack(self._vectors())
        return vectors @ vectors.T

    def turn(self, coefficients: Sequence[float]) -> None:
        """Set the direction to a linear combination of steps, changes and gradient."""
        self._direction = torch.tensor(coefficients, dtype=torch.float64) @ torch.stack(self._vectors())

    @override
    def state(self) -> dict[str, torch.Tensor]:
        return {"point": self._point, **{str(number): each for number, each in enumerate(chain(*self._pairs))}}

    @override
    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        self._point.copy_(state["point"])
        vectors = [state[str(number)] for number in range(len(state) - 1)]
        self._pairs = list(zip(vectors[::2], vectors[1::2], strict=True))

    def _found(self) -> torch.Tensor:
        """The gradient at the values."""
        found = self._sum.double().mul_(2.0**-FRACTION_BITS)
        return found if self._bound < LARGEST else found.fill_(torch.nan)

    def _vectors(self) -> list[torch.Tensor]:
        steps, changes = zip(*self._pairs, strict=True) if self._pairs else ((), ())
        return [*steps, *changes, self._gradient]


def answers_of(part: Part) -> dict[str, Callable[..., dict[str, Any]]]:
    """The calls by which the coordinator minimises, over all of a server's rules of type :class:`QuasiNewton`.

    Each answer has the number of the evaluation that the values belong to, which a restarted server does not know.
    """
    evaluation: int | None = None

    @contextmanager
    def paused() -> Iterator[tuple[list[QuasiNewton], dict[str, Any]]]:
        with part.paused() as rules:
            yield [rule for rule in rules if isinstance(rule, QuasiNewton)], {"evaluation": evaluation}

    def move(rate: float, number: int) -> dict[str, Any]:
        nonlocal evaluation
        evaluation = number
        with paused() as (rules, answer):
            for rule in rules:
                rule.move(rate)
        return answer

    def slope() -> dict[str, Any]:
        with paused() as (rules, answer):
            return answer | {"slope": sum(rule.slope() for rule in rules)}

    def accept(keep: bool) -> dict[str, Any]:
        with paused() as (rules, answer):
            for rule in rules:
                rule.accept(keep=keep)
        return answer

    def products() -> dict[str, Any]:
        with paused() as (rules, answer):
            return answer | {"products": torch.stack([rule.products() for rule in rules]).sum(0).tolist()}

    def turn(coefficients: Sequence[float]) -> dict[str, Any]:
        with paused() as (rules, answer):
            for rule in rules:
                rule.turn(coefficients)
        return answer

    def forget() -> dict[str, Any]:
        with paused() as (rules, answer):
            for rule in rules:
                rule.forget()
        return answer

    return {each.__name__: each for each in (move, slope, accept, products, turn, forget)}
