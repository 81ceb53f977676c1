"""What a network learns from labels: one file a task."""

from collections.abc import Mapping
from typing import Protocol

from sparkdl.data.card import LabelScale, LinkFunction
from sparkdl.data.label_types import arrow_type
from sparkdl.inputs.spec import InputSpec
from sparkdl.settings.section import TaskName
from sparkdl.training.tasks.classification import Classification, ClassVectors
from sparkdl.training.tasks.language_modelling import LanguageModelling
from sparkdl.training.tasks.learning import Task
from sparkdl.training.tasks.multi_label import MultiLabel
from sparkdl.training.tasks.ranking import Ranking
from sparkdl.training.tasks.regression import Regression

__all__ = [
    "ClassVectors",
    "Classification",
    "LanguageModelling",
    "MultiLabel",
    "Ranking",
    "Regression",
    "Task",
    "create_task",
]


class Labelled(Protocol):
    """What the card of a dataset or a model says of labels."""

    @property
    def task(self) -> TaskName: ...
    @property
    def label_scale(self) -> LabelScale | None: ...
    @property
    def num_classes(self) -> int: ...
    @property
    def label_type(self) -> str | None: ...
    @property
    def inputs(self) -> Mapping[str, InputSpec]: ...


def create_task(card: Labelled, *, link: LinkFunction = "identity") -> Task:
    """The task that the labels are for; ``link`` is of numbers that are not standardised. Runs anywhere."""
    match card.task:
        case "regression":
            scale = card.label_scale
            return Regression(scale.mean, scale.std) if scale else Regression(standardised=False, link=link)
        case "ranking":
            return Ranking()
        case "language_modelling":
            (spec,) = card.inputs.values()
            return LanguageModelling(spec.vocabulary or 1)
        case "multi_label":
            return MultiLabel(card.num_classes, arrow_type(card.label_type))
        case _:
            return Classification(card.num_classes, arrow_type(card.label_type))
