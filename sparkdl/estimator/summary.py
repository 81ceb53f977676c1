"""What a fitted model says of its training."""

from dataclasses import dataclass
from typing import Self

from sparkdl.training.train import TrainedModel

__all__ = ["TrainingSummary"]


@dataclass(frozen=True)
class TrainingSummary:
    """How a model was trained."""

    history: list[dict[str, float]]
    """One entry per epoch: ``train_loss``, ``validation_accuracy`` and so on, ``seconds``."""
    metrics: dict[str, float]
    """Of the model: that is the best epoch."""
    run_id: str
    """The MLflow run."""
    verdict: str
    """What the run was bound by, and what to change."""

    @classmethod
    def of(cls, trained: TrainedModel) -> Self:
        """What :func:`sparkdl.train` found."""
        return cls(trained.history, trained.metrics, trained.run_id, trained.verdict)

    @property
    def objective_history(self) -> list[float]:
        """The training loss after each epoch."""
        return [figures["train_loss"] for figures in self.history]
