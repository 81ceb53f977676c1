"""A worker's exchange with the servers before and after each of its steps. Runs in a task.

A push travels while the next step is computed. It includes the change of the buffers (running means) since they were
fetched: servers add these changes up, so that buffers reflect the rows of all workers.
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

BETA = 0.9  # number of workers x rate of elastic averaging, as in the paper of EASGD


class Pace(Protocol):
    """Bounds how far a worker is ahead of the others. The worker's clock counts its fetches and pushes."""

    def advance(self, count: int) -> None:
        """Advance the worker's clock by ``count`` ticks."""

    def wait(self) -> None:
        """Return when this worker is within the staleness bound of the slowest one."""


class StepNote(NamedTuple):
    """What is known about a step once its gradients are computed."""

    rate: float
    sums: tuple[float, ...]
    """Sums of figures, which are sent with the push that includes the step."""
    push: Push | None
    """The push that this step completes, with the step's portion and position in it; None within a period."""

    @property
    def rows(self) -> float:
        """The step's rows: the last of the sums but one, which counts steps."""
        return self.sums[-2]


class ServerExchange(ABC):
    """The exchange between one worker's replica and the servers; subclasses add the steps of the replica."""

    def __init__(self, model: nn.Module, client: ParameterClient, *, share: float, pace: Pace | None) -> None:
        """``share`` is the factor for changes of running means: 1 / number of workers."""
        self._client, self._share, self._pace = client, share, pace
        self.trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
        self._buffers = shared_buffers(model)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sparkdl-exchange")
        self._travelling: Future[list[int] | None] | None = None
        """The push in progress, and the fetch after it."""
        self._travelled = math.inf
        """Seconds that the last completed exchange took."""
        self._versions: list[int] = []
        """Versions of the servers' values that the replica has."""
        self._before: dict[str, torch.Tensor] = {}
        """The buffers when their changes were last added up."""
        self._changes: dict[str, torch.Tensor] = {}
        """Changes of the buffers that have not been pushed yet."""
        self._sums: tuple[float, ...] = ()
        self._moves = 0
        """Ticks of the worker's clock that the coordinator has not heard of."""
        self.counted = True
        """Whether servers counted the last completed push; if not, another worker has finished the portion first."""
        self.seconds_exchanging = self.seconds_held = 0.0
        """Seconds of waiting for exchanges, and for slower workers."""

    @abstractmethod
    def begin_step(self) -> None:
        """Called before the first forward pass of a step."""

    @abstractmethod
    def finish_step(self, note: StepNote) -> None:
        """Called when the gradients of a step have been computed."""

    def finish(self) -> None:
        """Return when all pushes have been merged."""
        self._arrive()
        if self._pace:
            self._pace.advance(self._moves)
            self._moves = 0

    def close(self) -> None:
        """End the thread of exchanges."""
        self._thread.shutdown(cancel_futures=True)

    def fetch(self, fragment: int | None = None) -> None:
        """Fetch the servers' values, or those of one fragment, and wait for them."""
        self._arrive()
        with self._exchanging():
            self._versions = self._client.pull(fragment)
        self._moves += 1
        self._take()

    def _wait_for_others(self) -> None:
        """Return when this worker's pushes are merged and it is within the staleness bound, if there is one."""
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
        """Start a push (if ``push`` is not None) and then a fetch, both while the next step is computed.

        ``fragment`` limits the fetch to one fragment. ``versions`` are those of the servers' values from which the
        tensors were computed, by default those that the replica has now.
        """
        versions, sent = list(self._versions) if versions is None else versions, dict(tensors)
        if push:
            push = push._replace(sums=self._sums)
            self._sums = ()
            if not push.fragment:  # buffers travel with the first fragment
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
        """Wait for the exchange in progress, and put the fetched values into the replica."""
        if self._travelling is None:
            return
        with self._exchanging():
            versions, self._travelling = self._travelling.result(), None
        if versions:
            self._versions = versions
            self._take()

    def _take(self) -> None:
        """Put the fetched values into the replica."""
        self._note_changes()
        self._client.copy_to(self._targets())
        self._before = {name: buffer.clone() for name, buffer in self._buffers.items()}

    def _targets(self) -> dict[str, torch.Tensor]:
        """The tensors that the servers' values are copied to."""
        return {**self.trained, **self._buffers}

    def _note_changes(self) -> None:
        for name, before in self._before.items():
            now = self._buffers[name]
            change = torch.where(now == before, 0, now - before)  # infinity - infinity, as in masks, would be NaN
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
    """A worker's share of a change of running means; integers, which count batches, count in full."""
    return change * share if change.is_floating_point() else change


class ElasticAveraging(ServerExchange):
    """The replica steps alone; after each period it and the servers' centre move towards each other.

    This is asynchronous EASGD (Zhang et al., 2015, arXiv 1412.6651, algorithm 1), with DeepSpark's period by default
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
    """The buffers that training changes by additions, which masks are not."""
    return {name: each for name, each in model.named_buffers() if each.dtype != torch.bool}
