"""What the driver sends to the ranks of an attempt, and what rank 0 returns to it."""

from dataclasses import dataclass

from sparkdl.collectives import Backend
from sparkdl.data import Dataset
from sparkdl.layouts import SharingPlan
from sparkdl.settings import Train
from sparkdl.training.evaluation import Evaluation

__all__ = ["Job", "TrainingResult"]


@dataclass(frozen=True)
class Job:
    """What the driver sends to every rank."""

    dataset: Dataset
    settings: Train
    folder: str
    """The run's directory, on storage that all ranks reach."""
    backend: Backend
    """The library by which ranks exchange tensors."""
    reference: int
    """The number of replicas that the learning rate and the batch size are meant for."""
    start_weights: str | None = None
    """A checkpoint whose model replaces the initial weights."""
    checkpoint: str | None = None
    """The checkpoint that this attempt continues from."""
    plan: SharingPlan | None = None
    """How ranks share a replica; None if each rank has a whole one."""
    until: int | None = None
    """For a trial: the number of epochs after which it pauses or ends. A trial does not evaluate held-out splits."""

    @property
    def last_epoch(self) -> int:
        """The number of epochs at which this job ends."""
        return self.settings.epochs if self.until is None else min(self.until, self.settings.epochs)


@dataclass(frozen=True)
class TrainingResult:
    """The result of training, which rank 0 returns."""

    history: list[dict[str, float]]
    """One entry per epoch: means over its rows, rows per second, and the validation figures after it."""
    best_epoch: int
    """The index, from 0, of the best epoch in the history."""
    checkpoint: str
    """The path of the best epoch's weights."""
    evaluations: dict[str, Evaluation]
    """The best epoch's evaluation on every split but ``train``; empty for a trial."""
