"""Decoupled DiLoCo (2026, arXiv 2604.21428): neither workers nor servers wait for all workers. Runs in a task."""

import torch
from torch import nn
from torch.optim import Optimizer
from typing_extensions import override

from sparkdl.parameters import ParameterClient
from sparkdl.settings.strategies import DecoupledDiLoCoOptions
from sparkdl.training.asynchronous.exchange import Pace, ServerExchange, StepNote

__all__ = ["DecoupledDiLoCo"]


class DecoupledDiLoCo(ServerExchange):
    """The replica steps alone. After each period, it pushes the change of one fragment and fetches the next.

    Fragments take turns. A push has the fragment's change since its last turn, weighted by the rows trained on since
    then. Servers take an outer step (:class:`~sparkdl.parameters.Outer`) when enough workers have pushed. Its result
    reaches the replica in the fragment's next turn, and the replica keeps what it has changed since its push.
    """

    def __init__(
        self,
        options: DecoupledDiLoCoOptions,
        model: nn.Module,
        client: ParameterClient,
        optimizer: Optimizer,
        *,
        share: float,
        pace: Pace | None,
    ) -> None:
        super().__init__(model, client, share=share, pace=pace)
        self._optimizer = optimizer
        names = list(self.trained)
        count = max(1, min(options.fragments, len(names)))
        self._fragments = [names[number::count] for number in range(count)]  # as in the servers' partition
        self._rows = [0.0] * count
        """By fragment: the rows trained on since it was pushed."""
        self._turn = 0
        """The fragment that is pushed next."""
        self._outer: dict[str, torch.Tensor] = {}
        """The outer parameters as the servers last sent them."""
        self._pushed: dict[str, torch.Tensor] = {}
        """The replica's parameters as of their last push, or of the servers' values that it took after that."""

    @override
    def begin_step(self) -> None:
        if not self._versions:
            for fragment in range(len(self._fragments)):  # a pull of all would end the servers' wait for pushes
                self.fetch(fragment)
            self._outer = {name: each.detach().clone() for name, each in self.trained.items()}
            self._pushed = {name: each.clone() for name, each in self._outer.items()}

    @override
    @torch.no_grad()
    def finish_step(self, note: StepNote) -> None:
        self._add_up(note.sums)
        self._rows = [rows + note.rows for rows in self._rows]
        for group in self._optimizer.param_groups:
            group["lr"] = note.rate
        self._optimizer.step()
        if note.push is None:
            return
        self._wait_for_others()
        changes = {name: self._pushed[name] - self.trained[name] for name in self._fragments[self._turn]}
        for name in changes:
            self._pushed[name].copy_(self.trained[name])
        push = note.push._replace(fragment=self._turn, weight=self._rows[self._turn])
        self._rows[self._turn] = 0.0
        self._turn = (self._turn + 1) % len(self._fragments)
        self._send(changes, push, fetch=True, fragment=self._turn)
        self._moves += 1

    @override
    @torch.no_grad()
    def _take(self) -> None:
        before = {name: self._outer[name].clone() for name in self._fragments[self._turn] if self._outer}
        super()._take()
        if all(torch.equal(self._outer[name], values) for name, values in before.items()):
            return  # the servers have not taken an outer step yet
        for name in before:
            own, pushed, outer = self.trained[name], self._pushed[name], self._outer[name]
            own.add_(outer - pushed)
            pushed.copy_(outer)

    @override
    def _targets(self) -> dict[str, torch.Tensor]:
        return {**(self._outer or self.trained), **self._buffers}
