"""How a server merges what workers push into a vector of values. Runs on a server, one push after another."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from typing_extensions import override

__all__ = ["RULES", "Adagrad", "Additive", "DynSGD", "PlainSGD", "Rule"]

EPSILON = 1e-10  # as in torch.optim.Adagrad: the first push of an element has nothing to be divided by


class Rule(ABC):
    """What happens to a vector of values when another one of its shape is pushed."""

    def __init__(self, values: torch.Tensor) -> None:
        self.values = values
        """Changed in place."""

    @abstractmethod
    def merge(self, pushed: torch.Tensor, *, rate: float, staleness: int) -> None:
        """Change the values; ``staleness`` is how many pushes were merged since the pusher fetched them."""

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
    def merge(self, pushed: torch.Tensor, *, rate: float, staleness: int) -> None:
        self.values.sub_(pushed, alpha=rate)


class DynSGD(Rule):
    """SGD with a rate that is divided by the gradient's staleness + 1 (Jiang et al., 2017, SIGMOD)."""

    @override
    def merge(self, pushed: torch.Tensor, *, rate: float, staleness: int) -> None:
        self.values.sub_(pushed, alpha=rate / (staleness + 1))


class Adagrad(Rule):
    """Downpour's: each value has a rate of its own, rate / sqrt(sum of its squared gradients) (Dean et al., 2012)."""

    def __init__(self, values: torch.Tensor) -> None:
        super().__init__(values)
        self._squares = torch.zeros_like(values)

    @override
    def merge(self, pushed: torch.Tensor, *, rate: float, staleness: int) -> None:
        self._squares.addcmul_(pushed, pushed)
        self.values.addcdiv_(pushed, self._squares.sqrt().add_(EPSILON), value=-rate)

    @override
    def state(self) -> dict[str, torch.Tensor]:
        return {"squares": self._squares}


class Additive(Rule):
    """Pushes are changes: values += change. It is what moves EASGD's centre, and running means."""

    @override
    def merge(self, pushed: torch.Tensor, *, rate: float, staleness: int) -> None:
        self.values.add_(pushed)


RULES: dict[str, type[Rule]] = {"adagrad": Adagrad, "sgd": PlainSGD, "dynsgd": DynSGD, "elastic": Additive}
"""By the name that settings have for what is done to trained parameters."""
