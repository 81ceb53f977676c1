"""Decoupled DiLoCo (2026, arXiv 2604.21428): neither workers nor servers wait for all others. Runs in a task."""

import torch
from torch import nn
from torch.optim import Optimizer
from typing_extensions import override

from sparkdl.parameters import ParameterClient
from sparkdl.settings.strategies import DecoupledDiLoCoOptions
from sparkdl.training.asynchronous.exchange import Pace, ServerExchange, StepNote

__all__ = ["DecoupledDiLoCo"]


class DecoupledDiLoCo(ServerExchange):
    """The replica steps alone. After each period, it pushes what it has changed in one fragment, and fetches the next.

    Fragments take turns, so that what is pushed is what has changed since the fragment's last turn, weighed by the
    rows that this took. Servers take outer steps by :class:`~sparkdl.parameters.Outer`, when enough workers have
    pushed. What comes of it reaches the replica in the fragment's next turn; what the replica has changed since it
    pushed stays.
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
        self._fragments = [names[number::count] for number in range(count)]  # as the servers' partition deals them
        self._rows = [0.0] * count
        """Of the steps since each fragment was pushed."""
        self._turn = 0
        """The fragment that is pushed next."""
        self._outer: dict[str, torch.Tensor] = {}
        """What servers have sent last."""
        self._pushed: dict[str, torch.Tensor] = {}
        """The replica's own parameters when they were pushed last, or taken from the servers since."""

    @override
    def begin_step(self) -> None:
        if not self._versions:
            for fragment in range(len(self._fragments)):  # all at once would end what servers wait for
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
            return  # servers still wait for others
        for name in before:
            own, pushed, outer = self.trained[name], self._pushed[name], self._outer[name]
            own.add_(outer - pushed)
            pushed.copy_(outer)

    @override
    def _targets(self) -> dict[str, torch.Tensor]:
        return {**(self._outer or self.trained), **self._buffers}
