"""A rank's messages to the driver during training, and the check that its loss is finite. Runs on ranks."""

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import torch

from sparkdl.cluster import Rank
from sparkdl.errors import TrainingError
from sparkdl.training.replica import BatchFigures
from sparkdl.training.reports.stopwatch import RankTimes, Stopwatch
from sparkdl.training.tasks import Task

__all__ = ["Measured", "Reporter"]

T = TypeVar("T")
FLUSH_SECONDS = 0.25  # reading a loss from a GPU waits for it, so it is not done in every step
POINTS = 10
"""Points of a curve per flush, at most: the driver and MLflow cannot take thousands per second."""


class Measured(NamedTuple):
    """The figures of some steps on this rank."""

    sums: list[list[float]]
    """By step: summed loss, the sums of the task's figures, weight of all rows."""
    steps: list[list[float]]
    """Points of rank 0's curves: step, loss, the task's figure, learning rate. Many steps share a point."""


class _Point(NamedTuple):
    """A step that had rows, as rank 0 has seen it."""

    step: int
    loss_sum: float
    sums: list[float]
    weight: float
    rate: float


class Reporter:
    """Collects the figures of steps, adds them up, and sends those of rank 0 in batches.

    Messages: ``epoch_started`` (epoch, epochs, step, and the total of steps that the run will have taken), ``steps``
    (points of rank 0's curves since the message before, and the rows that all ranks have seen since the epoch started),
    ``epoch`` (epoch, figures over all rows), ``times`` (epoch, how each rank has spent it); and from each rank
    ``trace`` (events of its first steps, and of those before a failure).
    """

    def __init__(self, rank: Rank, task: Task) -> None:
        self.rank, self.task = rank, task
        self.stopwatch = Stopwatch()
        self._flushed = 0.0
        self._global_rows = 0
        self._steps: list[tuple[int, float, Sequence[BatchFigures]]] = []

    def start_epoch(self, epoch: int, *, epochs: int, step: int, total: int) -> None:
        """Begin an epoch, or the rest of one."""
        self._global_rows = 0
        self._send("epoch_started", epoch=epoch, epochs=epochs, step=step, total=total)

    def step(self, step: int, figures: Sequence[BatchFigures], *, global_rows: int, rate: float) -> Measured | None:
        """Record a step: this rank's batches, and the rows of all ranks. Returns collected figures, if due."""
        self.rank.beat(step)
        self._steps.append((step, rate, figures))
        self._global_rows += global_rows
        return self.flush() if time.monotonic() - self._flushed > FLUSH_SECONDS else None

    def watched(self, batches: Iterable[T]) -> Iterator[T]:
        """The same batches; each of them is a sign of life."""
        for batch in batches:
            self.rank.beat()
            yield batch

    def epoch(self, epoch: int, figures: dict[str, float]) -> None:
        """Report the figures of a finished epoch."""
        self._send("epoch", epoch=epoch, figures=figures)

    def times(self, epoch: int, times: list[RankTimes]) -> None:
        """Report how the ranks have spent the steps of an epoch."""
        self._send("times", epoch=epoch, times=times)

    def trace(self, events: list[dict[str, Any]]) -> None:
        """Send what this rank has traced, if it has traced anything."""
        if events:
            self.rank.send("trace", events=events)

    def warn(self, text: str) -> None:
        """Send the driver a warning, once for all ranks."""
        self._send("warning", text=text)

    def flush(self) -> Measured:
        """Check and send the collected figures. Raises :class:`TrainingError` for a loss that is not finite."""
        self._flushed = time.monotonic()
        measured = Measured([], [])
        points: list[_Point] = []
        batches = [figures for _, _, step in self._steps for figures in step]
        losses = iter(_read([batch.loss for batch in batches]))
        sums_of_batches = iter(_read([batch.sums for batch in batches]))
        weights = iter(_read([batch.weight for batch in batches if batch.weight is not None]))
        for step, rate, figures in self._steps:
            loss_sum = sum(next(losses) * batch.rows for batch in figures)
            sums = [sum(each) for each in zip(*(next(sums_of_batches) for _ in figures), strict=True)]
            weight = sum(batch.rows if batch.weight is None else next(weights) for batch in figures)
            if not math.isfinite(loss_sum):
                raise TrainingError(
                    f"the loss is {loss_sum} at step {step} (learning rate {rate:g}, rank {self.rank.rank}); training"
                    " has stopped and the last good checkpoint is kept. Try a smaller learning_rate, warmup_epochs,"
                    " clip_norm or float32, and look for extreme values in the features"
                )
            measured.sums.append([loss_sum, *(sums or [0.0] * self.task.sum_size), weight])
            if weight and self.rank.rank == 0:
                points.append(_Point(step, loss_sum, sums, weight, rate))
        measured.steps.extend(self._curve(points))
        if self._steps:
            self._send("steps", steps=measured.steps, rows=self._global_rows)
        self._steps.clear()
        return measured

    def _curve(self, points: Sequence[_Point]) -> Iterator[list[float]]:
        """Step, loss, the task's figure and learning rate: means over several steps where there are many."""
        each = math.ceil(len(points) / POINTS)
        for first in range(0, len(points), each or 1):
            some = points[first : first + each]
            weight = sum(point.weight for point in some)
            sums = [sum(column) for column in zip(*(point.sums for point in some), strict=True)]
            figure = self.task.figures(sums, weight)[self.task.step_figure]
            yield [some[-1].step, sum(point.loss_sum for point in some) / weight, figure, some[-1].rate]

    def _send(self, kind: str, **payload: object) -> None:
        if self.rank.rank == 0:
            self.rank.send(kind, **payload)


def _read(tensors: Sequence[torch.Tensor]) -> list[Any]:
    """The tensors' values, with a single wait for the GPU."""
    return torch.stack(list(tensors)).tolist() if tensors else []
