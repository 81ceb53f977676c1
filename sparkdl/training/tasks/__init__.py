"""Tasks, such as classification: how a network learns from labels. One file per task."""

from collections.abc import Callable, Mapping
from typing import Protocol

from sparkdl.data.card_parts import LabelScale, LinkFunction
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
    "TASKS",
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
    """The fields about labels in the card of a dataset or a model."""

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
    """The task of a card. ``link`` is for regression with labels that are not standardised. Runs anywhere."""
    return TASKS[card.task](card, link)


def _regression(card: Labelled, link: LinkFunction) -> Task:
    scale = card.label_scale
    return Regression(scale.mean, scale.std) if scale else Regression(standardised=False, link=link)


def _language_modelling(card: Labelled, link: LinkFunction) -> Task:
    (spec,) = card.inputs.values()
    return LanguageModelling(spec.vocabulary or 1)


TASKS: dict[TaskName, Callable[[Labelled, LinkFunction], Task]] = {
    "classification": lambda card, link: Classification(card.num_classes, arrow_type(card.label_type)),
    "multi_label": lambda card, link: MultiLabel(card.num_classes, arrow_type(card.label_type)),
    "regression": _regression,
    "ranking": lambda card, link: Ranking(),
    "language_modelling": _language_modelling,
}
"""By name, how a task is created from a card and a link function."""
