"""The rules by which a server merges pushes into a vector of values. Runs on a server, one push after another."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

import torch
from typing_extensions import override

__all__ = ["RULES", "Adagrad", "Additive", "DynSGD", "Outer", "PlainSGD", "Rule"]

EPSILON = 1e-10  # as in torch.optim.Adagrad: avoids division by zero


class Rule(ABC):
    """Merges pushed vectors into a vector of values of the same shape."""

    def __init__(self, values: torch.Tensor) -> None:
        self.values = values
        """Changed in place."""

    @abstractmethod
    def merge(self, pushed: torch.Tensor, *, rate: float, staleness: int, weight: float) -> None:
        """Change the values; ``staleness`` is how many pushes were merged since the pusher fetched them.

        ``weight`` is the push's weight in a mean with others.
        """

    def settle(self, *, at_once: bool) -> None:
        """Merge the pushes that wait for others, if they have waited long enough or ``at_once`` is true."""

    def state(self) -> dict[str, torch.Tensor]:
        """The rule's vectors beside the values, not copied."""
        return {}

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Restore the result of :meth:`state`."""
        for name, vector in self.state().items():
            vector.copy_(state[name])


class PlainSGD(Rule):
    """Pushes are gradients: values -= rate * gradient."""

    @override
    def merge(self, pushed: torch.Tensor, *, rate: float, staleness: int, weight: float) -> None:
        self.values.sub_(pushed, alpha=rate)


class DynSGD(Rule):
    """SGD with its rate divided by the gradient's staleness + 1 (Jiang et al., 2017, SIGMOD)."""

    @override
    def merge(self, pushed: torch.Tensor, *, rate: float, staleness: int, weight: float) -> None:
        self.values.sub_(pushed, alpha=rate / (staleness + 1))


class Adagrad(Rule):
    """The rule of Downpour SGD: each value's rate is rate / sqrt(sum of its squared gradients) (Dean et al., 2012)."""

    def __init__(self, values: torch.Tensor) -> None:
        super().__init__(values)
        self._squares = torch.zeros_like(values)

    @override
    def merge(self, pushed: torch.Tensor, *, rate: float, staleness: int, weight: float) -> None:
        self._squares.addcmul_(pushed, pushed)
        self.values.addcdiv_(pushed, self._squares.sqrt().add_(EPSILON), value=-rate)

    @override
    def state(self) -> dict[str, torch.Tensor]:
        return {"squares": self._squares}


class Additive(Rule):
    """Pushes are changes: values += change. It is used for EASGD's centre and for running means."""

    @override
    def merge(self, pushed: torch.Tensor, *, rate: float, staleness: int, weight: float) -> None:
        self.values.add_(pushed)


class Outer(Rule):
    """An outer step of SGD with Nesterov momentum on the weighted mean of the changes that some workers have pushed.

    As in Decoupled DiLoCo (2026, arXiv 2604.21428), the step waits for a quorum of pushes, and then for a grace period
    for others; unlike there, the grace period does not adapt. A push has the worker's old values minus its new ones.
    """

    def __init__(
        self,
        values: torch.Tensor,
        *,
        rate: float,
        momentum: float,
        quorum: int,
        grace: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``quorum`` is a number of pushes, ``grace`` a time in seconds of ``clock``."""
        super().__init__(values)
        self._rate, self._momentum, self._quorum, self._grace, self._clock = rate, momentum, quorum, grace, clock
        self._sum = torch.zeros_like(values)
        """The weighted sum of the pushes that wait."""
        self._velocity = torch.zeros_like(values)
        self._waiting = torch.zeros(2, dtype=torch.float64)
        """The number of pushes that wait, and the sum of their weights."""
        self._complete: float | None = None
        """When the quorum was reached; None if it is not."""

    @override
    def merge(self, pushed: torch.Tensor, *, rate: float, staleness: int, weight: float) -> None:
        self.settle(at_once=False)  # this push is too late for a mean whose grace period is over
        self._sum.add_(pushed, alpha=weight)
        self._waiting += torch.tensor([1.0, weight], dtype=torch.float64)
        if self._complete is None and self._waiting[0] >= self._quorum:
            self._complete = self._clock()
        self.settle(at_once=False)

    @override
    def settle(self, *, at_once: bool) -> None:
        due = self._complete is not None and self._clock() >= self._complete + self._grace
        if not self._waiting[0] or not (at_once or due):
            return
        mean = self._sum.div_(float(self._waiting[1]))
        self._velocity.mul_(self._momentum).add_(mean)
        self.values.sub_(mean.add_(self._velocity, alpha=self._momentum), alpha=self._rate)
        self._sum.zero_()
        self._waiting.zero_()
        self._complete = None

    @override
    def state(self) -> dict[str, torch.Tensor]:
        return {"sum": self._sum, "velocity": self._velocity, "waiting": self._waiting}

    @override
    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        super().load(state)
        self._complete = self._clock() if self._waiting[0] >= self._quorum else None


RULES: dict[str, type[Rule]] = {"adagrad": Adagrad, "sgd": PlainSGD, "dynsgd": DynSGD, "elastic": Additive}
"""The rules for trained parameters, by their names in the settings."""
