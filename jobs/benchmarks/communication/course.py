"""Trainings on hosts of a network, step by step. Runs on ranks."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch

from benchmarks.loop import new_replica
from benchmarks.network import bytes_sent
from sparkdl.cluster import Rank
from sparkdl.collectives import Communicator, TorchBackend
from sparkdl.data import Dataset
from sparkdl.planning.cost import Link, fit_link
from sparkdl.planning.measure import ring_exchanges, topology_seconds
from sparkdl.settings import Train
from sparkdl.training.checkpoints.state import TrainingState
from sparkdl.training.loop import evaluate_split, train_epoch
from sparkdl.training.reports.reporter import Reporter

__all__ = ["BACKEND", "Course", "Meter", "Track", "exchange_topologies", "find_link", "follow"]

BACKEND = TorchBackend()


class Meter(NamedTuple):
    """What has run up by some moment."""

    seconds: float
    bytes: float
    """That the host has sent over its link, headers included."""
    waited: float
    """Seconds that the rank has spent in exchanges."""
    handed_over: float
    """Bytes of tensors that it has handed over to be exchanged."""

    @classmethod
    def read(cls, world: Communicator) -> Self:
        """At this moment."""
        return cls(time.perf_counter(), bytes_sent(), world.seconds_waited, world.bytes_sent)

    def since(self, before: "Meter") -> "Meter":
        """What has come since another moment."""
        return Meter(*(now - then for now, then in zip(self, before, strict=True)))


@dataclass(frozen=True)
class Track:
    """What a rank has seen."""

    steps: list[Meter]
    """At the end of each step, since the training began. Looks at the validation rows do not count."""
    accuracies: dict[int, float]
    """On the validation rows, by the number of steps before."""
    test: float | None
    """Accuracy on the test rows at the end, where it was asked for."""


@dataclass(frozen=True)
class Course:
    """A training of so many steps at most."""

    dataset: Dataset
    settings: Train
    steps: int
    look_every: int = 0
    """Steps between two looks at the validation rows; 0: there are none."""
    target: float = 2.0
    """The validation accuracy at which it is over; by default it cannot be reached."""
    test: bool = False
    """Whether to look at the test rows, once, at the end."""

    def follow(self, rank: Rank, world: Communicator) -> Track:
        """Train by the loop that :func:`sparkdl.train` has. Runs on a rank."""
        replica = new_replica(rank, self.dataset, self.settings, world)
        reporter = Reporter(rank, replica.task)
        state = TrainingState()
        steps: list[Meter] = []
        accuracies: dict[int, float] = {}
        world.barrier()
        began = Meter.read(world)

        def look(split: str) -> float:
            with replica.strategy.consensus() as model:
                found = evaluate_split(replica, model, self.dataset, split, reporter)
            replica.model.train()
            world.barrier()
            return found.figures["accuracy"]

        def after_step(state: TrainingState) -> None:
            nonlocal began
            now = Meter.read(world)
            steps.append(now.since(began))
            if self.look_every and state.step % self.look_every == 0:
                accuracies[state.step] = look("validation")
                began = Meter.read(world).since(steps[-1])  # as if the look had taken nothing
            if state.step == self.steps or accuracies.get(state.step, 0.0) >= self.target:
                raise _Over

        try:
            while True:
                figures = train_epoch(replica, self.dataset, state, reporter, after_step=after_step)
                replica.strategy.end_epoch()
                state.finish_epoch(figures)
        except _Over:
            return Track(steps, accuracies, look("test") if self.test else None)


def follow(courses: Sequence[Course], rank: Rank) -> list[Track]:
    """One training after another, each with one thread. Called on each rank."""
    torch.set_num_threads(1)
    with BACKEND.connect() as world:
        return [course.follow(rank, world) for course in courses]


def find_link(rank: Rank) -> Link:
    """The cost model's two numbers of the network. Called on each rank."""
    torch.set_num_threads(1)
    with BACKEND.connect() as world:
        return fit_link(ring_exchanges(world, torch.device(rank.device)))


def exchange_topologies(size: int, rank: Rank) -> dict[str, float]:
    """Seconds of a mean of ``size`` bytes in each topology that there is on these hosts. Called on each rank."""
    torch.set_num_threads(1)
    with BACKEND.connect() as world:
        return topology_seconds(world, size)


class _Over(Exception):  # noqa: N818 - nothing went wrong
    """The last step of a course has been taken."""
