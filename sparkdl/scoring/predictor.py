"""From a column of inputs to labels and probabilities. Runs anywhere."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from sparkdl.data.label_types import arrow_type
from sparkdl.scoring.model_card import ModelCard
from sparkdl.settings.score import BATCH_SIZE, TOP_K
from sparkdl.training.tasks import ClassVectors, Ranking, Regression, Task, create_task
from sparkdl.training.tasks.likeliest import lists, ranked

if TYPE_CHECKING:
    from sparkdl.scoring.network import NetworkModel

__all__ = ["Predictor", "answering_task"]


class Model(Protocol):
    """A network, for one of the tasks."""

    def outputs(self, column: pa.Array | pa.ChunkedArray, *, batch_size: int) -> torch.Tensor:
        """What it answers, of shape (n, outputs). Raises :class:`~sparkdl.errors.DataError` for rows it cannot read."""


class RankingModel(Protocol):
    """A model of so many classes that it does not answer for all of them."""

    def top_k(
        self, column: pa.Array | pa.ChunkedArray, k: int, *, batch_size: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """The k likeliest classes of each row, best first, and their probabilities, both of shape (n, k).

        Raises :class:`~sparkdl.errors.DataError` for rows that it cannot read.
        """


@dataclass(frozen=True)
class Predictor:
    """A model, and the card that tells what goes in and what comes out."""

    model: Model | RankingModel
    card: ModelCard
    labels: pa.Array
    """By class index, in their own type."""
    task: Task
    """What outputs mean, and which columns are made of them."""
    contributions: bool = False
    """Whether the last column is what each feature contributes."""

    @classmethod
    def load(
        cls, folder: str | Path, *, vectors: bool = False, contributions: bool = False, device: str = "cpu"
    ) -> "Predictor":
        """Open a model's folder; see :func:`sparkdl.tracking.download`. The rest: see :func:`answering_task`.

        A network computes on ``device``, an ensemble on the CPU.

        Raises :class:`~sparkdl.errors.ModelError` if something in it is missing, damaged, or was altered. Nothing in
        the folder is executed.
        """
        card = ModelCard.load(folder)
        task = answering_task(card, vectors=vectors, contributions=contributions)
        return cls(_open_model(Path(folder), card, task, device), card, card.read_labels(folder), task, contributions)

    def answer(
        self, column: pa.Array | pa.ChunkedArray, *, top_k: int = TOP_K, batch_size: int = BATCH_SIZE
    ) -> list[pa.Array]:
        """The Arrow arrays of ``task.answer`` for an Arrow column of inputs.

        ``top_k`` lists that many classes, or all if there are fewer, the likeliest first. Raises
        :class:`~sparkdl.errors.DataError` for rows that are null or of another size.
        """
        top_k = min(top_k, len(self.labels))
        if self.card.labels:
            found = cast(RankingModel, self.model).top_k(column, top_k, batch_size=batch_size)
            return ranked(self.labels, *found)
        outputs = cast(Model, self.model).outputs(column, batch_size=batch_size)
        answers = self.task.answers(outputs, self.labels, top_k=top_k)
        if self.contributions:
            task, network = cast(ClassVectors | Ranking | Regression, self.task), cast("NetworkModel", self.model)
            answers.append(lists(network.contributions(column, task.values, batch_size=batch_size).numpy()))
        return answers


def answering_task(card: ModelCard, *, vectors: bool = False, contributions: bool = False) -> Task:
    """The task that says which columns predictions have; of a classifier, ``vectors`` are for pyspark.ml.

    With ``contributions``, the last one is what each feature contributes to the logit of the predicted class, or to the
    predicted number or score (:mod:`sparkdl.scoring.contributions`).
    """
    labels = arrow_type(card.label_type)
    task = ClassVectors(card.num_classes, labels) if vectors else create_task(card, link=card.link)
    if contributions:
        task.answer = task.answer.append(pa.field("contributions", pa.list_(pa.float64())))
    return task


def _open_model(folder: Path, card: ModelCard, task: Task, device: str) -> Model | RankingModel:
    """A network or an ensemble of hashed meta-models, of which neither loads what only the other needs."""
    if card.labels:
        from sparkdl.extreme.ensemble import open_model as open_ensemble

        return open_ensemble(folder, card.input, card.labels.classes)
    from sparkdl.scoring.network import open_model as open_network

    return open_network(folder, card.input, task.outputs, device=device)
