"""The training summary of a fitted model."""

from dataclasses import dataclass
from typing import Self

from sparkdl.training.train import TrainedModel

__all__ = ["TrainingSummary"]


@dataclass(frozen=True)
class TrainingSummary:
    """How a model was trained."""

    history: list[dict[str, float]]
    """One entry per epoch: ``train_loss``, ``seconds``, ``validation_accuracy`` and so on."""
    metrics: dict[str, float]
    """Of the best epoch, whose weights the model has."""
    run_id: str
    """The MLflow run."""
    verdict: str
    """What limited the speed of the run, and what to change."""

    @classmethod
    def of(cls, trained: TrainedModel) -> Self:
        """The summary of a training by :func:`sparkdl.train`."""
        return cls(trained.history, trained.metrics, trained.run_id, trained.verdict)

    @property
    def objective_history(self) -> list[float]:
        """The training loss after each epoch."""
        return [figures["train_loss"] for figures in self.history]
