"""Downpour SGD: workers push gradients and fetch weights while they compute. Runs in a task."""

import time

import torch
from torch import nn
from typing_extensions import override

from sparkdl.parameters import ParameterClient
from sparkdl.settings.strategies import DownpourOptions
from sparkdl.training.asynchronous.exchange import Pace, ServerExchange, StepNote

__all__ = ["Downpour"]

SHORT = 1 / 3
"""Share of the time between exchanges: a worker waits for shorter exchanges, because doubled staleness costs more."""


class Downpour(ServerExchange):
    """Gradients go to the servers, which step; weights come back (Downpour SGD: Dean et al., 2012, algorithm 1.1).

    Values that arrive during a step are used from the next step on, so that a gradient is stale by two steps of each
    other worker. Where every step has an exchange, and exchanges are short, the worker waits for them: a gradient is
    then stale by one.
    """

    def __init__(
        self,
        options: DownpourOptions,
        model: nn.Module,
        client: ParameterClient,
        *,
        share: float,
        pace: Pace | None,
    ) -> None:
        super().__init__(model, client, share=share, pace=pace)
        self._fetch_period = options.fetch_period
        self._each_step = pace is None and options.period == options.fetch_period == 1
        self._accrued: dict[str, torch.Tensor] = {}
        self._accrued_from: list[int] = []
        """Versions of the servers' values from which the first accrued gradient was computed."""
        self._steps = 0
        self._sent = self._between = 0.0
        """When the last exchange began, and the seconds between its beginning and that of the one before."""

    @override
    def begin_step(self) -> None:
        due = self._pace is not None and self._steps % self._fetch_period == 0
        if due:
            self._wait_for_others()
        if due or not self._versions:
            self.fetch()
        if self._each_step and self._travelled <= SHORT * self._between:
            self._arrive()
        if not self._accrued:
            self._accrued_from = list(self._versions)

    @override
    def finish_step(self, note: StepNote) -> None:
        self._steps += 1
        gradients = {name: each.grad for name, each in self.trained.items() if each.grad is not None}
        self._add_up(note.sums)
        for name, gradient in gradients.items():
            if name in self._accrued:
                self._accrued[name].add_(gradient)
            else:
                self._accrued[name] = gradient  # not copied: the next step allocates a new gradient
            if self._fetch_period > 1:
                self.trained[name].detach().sub_(gradient, alpha=note.rate)
        fetch = self._pace is None and self._steps % self._fetch_period == 0
        if note.push:
            self._wait_for_others()
        if note.push or fetch:
            self._arrive()
            now = time.perf_counter()
            self._sent, self._between = now, now - self._sent
            self._send(self._accrued if note.push else {}, note.push, fetch=fetch, versions=self._accrued_from)
            if note.push:
                self._accrued = {}
