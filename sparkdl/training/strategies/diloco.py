"""DiLoCo (Douillard et al., 2023, arXiv 2311.08105): the ranks' mean change over many steps is an outer gradient.

Streaming DiLoCo (2025, arXiv 2501.18512) sends the change fragment by fragment while steps go on.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn
from torch.optim import SGD, Optimizer
from typing_extensions import override

from sparkdl.collectives import Averager, Communicator, Wait, start_means
from sparkdl.settings.strategies import DiLoCoOptions
from sparkdl.training.strategies.strategy import SteppingAlone

__all__ = ["DiLoCo"]


@dataclass
class _Fragment:
    """Some of the parameters: this rank's own, the outer ones, and the transfer of their change in progress, if any."""

    own: list[nn.Parameter]
    outer: list[torch.Tensor]
    optimizer: SGD
    left_at: int | None = None
    """The step after which the change was sent; None if no transfer is in progress."""
    wait: Wait | None = None


class DiLoCo(SteppingAlone):
    """The outer step is SGD with Nesterov momentum on the mean change of all ranks since the last outer step.

    Each rank holds the outer parameters and their momentum. Between outer steps, the consensus is the mean of all
    replicas. A single rank takes its outer steps, too.
    """

    replicas_differ: ClassVar[bool] = True

    def __init__(self, options: DiLoCoOptions, communicator: Communicator, averager: Averager) -> None:
        super().__init__(communicator, averager)
        self._options = options
        self._fragments: list[_Fragment] = []

    @override
    def wrap(self, model: nn.Module, make_optimizer: Callable[[nn.Module], Optimizer]) -> tuple[nn.Module, Optimizer]:
        model, optimizer = super().wrap(model, make_optimizer)
        self.load(None)
        return model, optimizer

    @override
    def after_step(self) -> None:
        super().after_step()
        options = self._options
        for number, fragment in enumerate(self._fragments):
            turn = options.period * (number + 1) // len(self._fragments)  # the last one is sent at the period's end
            if self._steps % options.period == turn % options.period:
                self._send(number, fragment)
            if fragment.left_at is not None and self._steps == fragment.left_at + options.delay:
                self._receive(fragment)

    @override
    def state(self) -> dict[str, Any]:
        for fragment in self._fragments:
            _arrive(fragment)  # completes transfers, after which the state is the same on all ranks
        fragments = [
            {
                "outer": [tensor.detach() for tensor in fragment.outer],
                "optimizer": fragment.optimizer.state_dict(),
                "left_at": fragment.left_at,
                "change": [tensor.grad for tensor in fragment.outer] if fragment.left_at is not None else [],
            }
            for fragment in self._fragments
        ]
        return super().state() | {"fragments": fragments, "averager": self.averager.state()}

    @override
    def load(self, state: Mapping[str, Any] | None) -> None:
        super().load(state)
        trained = list(self.trained.values())
        count = min(self._options.fragments, len(trained))
        self._fragments = [self._new_fragment(trained[number::count]) for number in range(count)]
        if state:
            self.averager.load(state["averager"])
            for fragment, saved in zip(self._fragments, state["fragments"], strict=True):
                for tensor, value in zip(fragment.outer, saved["outer"], strict=True):
                    tensor.copy_(value)
                fragment.optimizer.load_state_dict(saved["optimizer"])
                fragment.left_at = saved["left_at"]
                for tensor, change in zip(fragment.outer, saved["change"], strict=False):
                    tensor.grad = change.to(tensor.device)

    def _new_fragment(self, own: list[nn.Parameter]) -> _Fragment:
        outer = [parameter.detach().clone() for parameter in own]
        momentum = self._options.outer_momentum
        return _Fragment(
            own, outer, SGD(outer, lr=self._options.outer_learning_rate, momentum=momentum, nesterov=momentum > 0)
        )

    def _send(self, number: int, fragment: _Fragment) -> None:
        for outer, own in zip(fragment.outer, fragment.own, strict=True):
            outer.grad = outer - own.detach()
        changes = [outer.grad for outer in fragment.outer if outer.grad is not None]
        fragment.left_at = self._steps
        fragment.wait = start_means(self.averager, changes, name=f"fragment.{number}")

    @torch.no_grad()
    def _receive(self, fragment: _Fragment) -> None:
        _arrive(fragment)
        fragment.optimizer.step()
        fragment.optimizer.zero_grad()
        fragment.left_at = None
        for own, outer in zip(fragment.own, fragment.outer, strict=True):
            own.copy_(torch.lerp(outer, own, self._options.mixing))


def _arrive(fragment: _Fragment) -> None:
    """Wait until a fragment's mean change has arrived, if its transfer is in progress."""
    if fragment.wait:
        fragment.wait()
        fragment.wait = None
