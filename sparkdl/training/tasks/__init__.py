"""What a network learns from labels: one file a task."""

from typing import Protocol

from sparkdl.data.card import LabelScale
from sparkdl.settings.section import TaskName
from sparkdl.training.tasks.classification import Classification, ClassVectors
from sparkdl.training.tasks.learning import Task
from sparkdl.training.tasks.multi_label import MultiLabel
from sparkdl.training.tasks.ranking import Ranking
from sparkdl.training.tasks.regression import Regression

__all__ = ["ClassVectors", "Classification", "MultiLabel", "Ranking", "Regression", "Task", "create_task"]


class Labelled(Protocol):
    """What the card of a dataset or a model says of labels."""

    @property
    def task(self) -> TaskName: ...
    @property
    def label_scale(self) -> LabelScale | None: ...
    @property
    def num_classes(self) -> int: ...


def create_task(card: Labelled) -> Task:
    """The task that the labels are for. Runs anywhere."""
    if card.label_scale is not None:
        return Regression(card.label_scale.mean, card.label_scale.std)
    if card.task == "ranking":
        return Ranking()
    return MultiLabel(card.num_classes) if card.task == "multi_label" else Classification(card.num_classes)
