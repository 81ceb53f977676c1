"""What a worker does about the servers before and after each of its steps. Runs in a task.

What is sent travels while the next step is computed. It takes along how much the buffers (running means) have changed
since they came: servers add that up, so that buffers follow the rows of all workers.
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import torch
from torch import nn
from torch.optim import Optimizer
from typing_extensions import override

from sparkdl.parameters import ParameterClient, Push
from sparkdl.settings.strategies import AsyncEASGDOptions

__all__ = ["ElasticAveraging", "Pace", "ServerExchange", "StepNote", "shared_buffers"]

BETA = 0.9  # number of workers x rate of elastic averaging, as in its paper


class Pace(Protocol):
    """Keeps a worker near the others. Its clock counts how often it has fetched and pushed."""

    def advance(self, count: int) -> None:
        """Let the worker's clock go on."""

    def wait(self) -> None:
        """Return when the clock of no other worker that has something to do is too far behind."""


class StepNote(NamedTuple):
    """What is known of a step when its gradients are."""

    rate: float
    sums: tuple[float, ...]
    """Figures to be added up with the push that it is part of."""
    push: Push | None
    """The push that it completes, with which the step's portion and its place in it are told; None within a period."""

    @property
    def rows(self) -> float:
        """Of the step; after them, the last of the figures is one step."""
        return self.sums[-2]


class ServerExchange(ABC):
    """One worker's replica and the servers. All but the steps of a model is here."""

    def __init__(self, model: nn.Module, client: ParameterClient, *, share: float, pace: Pace | None) -> None:
        """``share`` is the part of a change of running means that counts: one of so many workers'."""
        self._client, self._share, self._pace = client, share, pace
        self.trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
        self._buffers = shared_buffers(model)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sparkdl-exchange")
        self._travelling: Future[list[int] | None] | None = None
        """A push, and what is fetched after it."""
        self._travelled = math.inf
        """Seconds that the last one took which has come to its end."""
        self._versions: list[int] = []
        """Of the values that the replica has."""
        self._before: dict[str, torch.Tensor] = {}
        """The buffers as they were when their changes were added up."""
        self._changes: dict[str, torch.Tensor] = {}
        """Of the buffers, not sent yet."""
        self._sums: tuple[float, ...] = ()
        self._moves = 0
        """Of its clock, that have not been told."""
        self.counted = True
        """Whether the last push that has come to its end counted: otherwise another worker has done the portion."""
        self.seconds_exchanging = self.seconds_held = 0.0
        """Waiting for what travels, and for slower workers."""

    @abstractmethod
    def begin_step(self) -> None:
        """Called before the first forward pass of a step."""

    @abstractmethod
    def finish_step(self, note: StepNote) -> None:
        """Called when the gradients of a step are there."""

    def finish(self) -> None:
        """Return when all that was pushed has been merged."""
        self._arrive()
        if self._pace:
            self._pace.advance(self._moves)
            self._moves = 0

    def close(self) -> None:
        """Give up the thread."""
        self._thread.shutdown(cancel_futures=True)

    def fetch(self, fragment: int | None = None) -> None:
        """Take the servers' values at once, or those of a fragment."""
        self._arrive()
        with self._exchanging():
            self._versions = self._client.pull(fragment)
        self._moves += 1
        self._take()

    def _wait_for_others(self) -> None:
        """Return when what this worker has pushed is merged and, where staleness is bounded, others are near."""
        self.finish()
        started = time.perf_counter()
        if self._pace:
            self._pace.wait()
        self.seconds_held += time.perf_counter() - started

    def _add_up(self, sums: tuple[float, ...]) -> None:
        self._sums = tuple(map(sum, zip(self._sums or (0.0,) * len(sums), sums, strict=True)))

    def _send(
        self,
        tensors: Mapping[str, torch.Tensor],
        push: Push | None,
        *,
        fetch: bool,
        fragment: int | None = None,
        versions: list[int] | None = None,
    ) -> None:
        """Push what servers are to merge, if anything, then fetch, both while the next step is computed.

        ``fragment`` is what is fetched, if not all; ``versions`` are those of the values that the tensors were computed
        from, if not of those that the replica has now.
        """
        versions, sent = list(self._versions) if versions is None else versions, dict(tensors)
        if push:
            push = push._replace(sums=self._sums)
            self._sums = ()
            if not push.fragment:  # buffers belong to the first one
                self._note_changes()
                sent |= {name: _scaled(change, self._share) for name, change in self._changes.items()}
                self._changes = {}

        def travel() -> list[int] | None:
            started = time.perf_counter()
            if push:
                self.counted = self._client.push(sent, push, versions)
            fetched = self._client.pull(fragment) if fetch else None
            self._travelled = time.perf_counter() - started
            return fetched

        self._moves += bool(push)
        self._travelling = self._thread.submit(travel)

    def _arrive(self) -> None:
        """Wait for what travels, and take what it brings."""
        if self._travelling is None:
            return
        with self._exchanging():
            versions, self._travelling = self._travelling.result(), None
        if versions:
            self._versions = versions
            self._take()

    def _take(self) -> None:
        """Put what was fetched into the replica."""
        self._note_changes()
        self._client.copy_to(self._targets())
        self._before = {name: buffer.clone() for name, buffer in self._buffers.items()}

    def _targets(self) -> dict[str, torch.Tensor]:
        """Where the servers' values go."""
        return {**self.trained, **self._buffers}

    def _note_changes(self) -> None:
        for name, before in self._before.items():
            now = self._buffers[name]
            change = torch.where(now == before, 0, now - before)  # a mask of infinities has no difference
            self._changes[name] = self._changes[name] + change if name in self._changes else change
            before.copy_(self._buffers[name])

    @contextmanager
    def _exchanging(self) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds_exchanging += time.perf_counter() - started


def _scaled(change: torch.Tensor, share: float) -> torch.Tensor:
    """A part of a change of means; what counts batches counts all of them."""
    return change * share if change.is_floating_point() else change


class ElasticAveraging(ServerExchange):
    """The replica steps alone; now and then it and the servers' centre move towards each other.

    It is asynchronous EASGD (Zhang et al., 2015, arXiv 1412.6651, algorithm 1), with DeepSpark's period by default
    (Kim et al., 2016, arXiv 1602.08191).
    """

    def __init__(
        self,
        options: AsyncEASGDOptions,
        model: nn.Module,
        client: ParameterClient,
        optimizer: Optimizer,
        *,
        share: float,
        pace: Pace | None,
    ) -> None:
        super().__init__(model, client, share=share, pace=pace)
        self._rate = options.rate or BETA * share
        self._optimizer = optimizer
        self._centre: dict[str, torch.Tensor] = {}

    @override
    def begin_step(self) -> None:
        if not self._versions:
            self.fetch()
            self._centre = {name: each.detach().clone() for name, each in self.trained.items()}

    @override
    @torch.no_grad()
    def finish_step(self, note: StepNote) -> None:
        self._add_up(note.sums)
        for group in self._optimizer.param_groups:
            group["lr"] = note.rate
        self._optimizer.step()
        if note.push is None:
            return
        self._wait_for_others()
        self.fetch()
        self._wait_for_others()
        pulls = {name: self._rate * (each - self._centre[name]) for name, each in self.trained.items()}
        for name, pull in pulls.items():
            self.trained[name].sub_(pull)
        self._send(pulls, note.push, fetch=False)

    @override
    def _targets(self) -> dict[str, torch.Tensor]:
        return {**(self._centre or self.trained), **self._buffers}


def shared_buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    """The buffers that training changes by adding to them: not masks."""
    return {name: each for name, each in model.named_buffers() if each.dtype != torch.bool}
