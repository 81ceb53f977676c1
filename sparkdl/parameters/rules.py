"""How a server merges what workers push into a vector of values. Runs on a server, one push after another."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

import torch
from typing_extensions import override

__all__ = ["RULES", "Adagrad", "Additive", "DynSGD", "Outer", "PlainSGD", "Rule"]

EPSILON = 1e-10  # as in torch.optim.Adagrad: the first push of an element has nothing to be divided by


class Rule(ABC):
    """What happens to a vector of values when another one of its shape is pushed."""

    def __init__(self, values: torch.Tensor) -> None:
        self.values = values
        """Changed in place."""

    @abstractmethod
    def merge(self, pushed: torch.Tensor, *, rate: float, staleness: int, weight: float) -> None:
        """Change the values; ``staleness`` is how many pushes were merged since the pusher fetched them.

        ``weight`` is that of what was pushed in a mean with others.
        """

    def settle(self, *, at_once: bool) -> None:
        """Merge what still waits for other pushes, if it has waited long enough or it has to be ``at_once``."""

    def state(self) -> dict[str, torch.Tensor]:
        """What it remembers: vectors beside the values, and not copies of them."""
        return {}

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Go on from what :meth:`state` gave."""
        for name, vector in self.state().items():
            vector.copy_(state[name])


class PlainSGD(Rule):
    """Pushes are gradients: values -= rate * gradient."""

    @override
    def merge(self, pushed: torch.Tensor, *, rate: float, staleness: int, weight: float) -> None:
        self.values.sub_(pushed, alpha=rate)


class DynSGD(Rule):
    """SGD with a rate that is divided by the gradient's staleness + 1 (Jiang et al., 2017, SIGMOD)."""

    @override
    def merge(self, pushed: torch.Tensor, *, rate: float, staleness: int, weight: float) -> None:
        self.values.sub_(pushed, alpha=rate / (staleness + 1))


class Adagrad(Rule):
    """Downpour's: each value has a rate of its own, rate / sqrt(sum of its squared gradients) (Dean et al., 2012)."""

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
    """Pushes are changes: values += change. It is what moves EASGD's centre, and running means."""

    @override
    def merge(self, pushed: torch.Tensor, *, rate: float, staleness: int, weight: float) -> None:
        self.values.add_(pushed)


class Outer(Rule):
    """An outer step of SGD with Nesterov's momentum on the mean of what some workers have changed.

    As in Decoupled DiLoCo (2026, arXiv 2604.21428), a quorum has to have pushed, a grace is waited for others, and
    each push counts by its weight. The grace does not adapt, unlike there. What is pushed is values that a worker had
    minus those that it has.
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
        """``quorum`` is a number of pushes, ``grace`` seconds of the ``clock``."""
        super().__init__(values)
        self._rate, self._momentum, self._quorum, self._grace, self._clock = rate, momentum, quorum, grace, clock
        self._sum = torch.zeros_like(values)
        """Of what waits, times its weight."""
        self._velocity = torch.zeros_like(values)
        self._waiting = torch.zeros(2, dtype=torch.float64)
        """How many pushes wait, and their weight."""
        self._complete: float | None = None
        """When the quorum was there."""

    @override
    def merge(self, pushed: torch.Tensor, *, rate: float, staleness: int, weight: float) -> None:
        self.settle(at_once=False)  # this one has come too late for a mean whose grace is over
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
"""By the name that settings have for what is done to trained parameters."""
