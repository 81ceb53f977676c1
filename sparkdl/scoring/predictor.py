"""Turns a column of inputs into labels and probabilities. Runs anywhere."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from sparkdl.data.label_types import arrow_type
from sparkdl.data.model_card import ModelCard
from sparkdl.errors import ConfigError
from sparkdl.models import LOGITS
from sparkdl.settings.compress import FormChoice
from sparkdl.settings.score import BATCH_SIZE, TOP_K
from sparkdl.training.output_columns import column_of, output_columns
from sparkdl.training.tasks import ClassVectors, Ranking, Regression, Task, create_task
from sparkdl.training.tasks.likeliest import lists, ranked

if TYPE_CHECKING:
    from sparkdl.scoring.network import NetworkModel

__all__ = ["Asked", "Predictor", "answering_task"]


class Model(Protocol):
    """A model with outputs for all classes: a network."""

    def outputs(self, column: pa.Array | pa.ChunkedArray, *, batch_size: int) -> dict[str, torch.Tensor]:
        """The outputs by name, of shape (n, ...). Raises :class:`~sparkdl.errors.DataError` for unreadable rows."""


class RankingModel(Protocol):
    """A model with very many classes, which only returns the most likely ones."""

    def top_k(
        self, column: pa.Array | pa.ChunkedArray, k: int, *, batch_size: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """The k most likely classes of each row, best first, and their probabilities, both of shape (n, k).

        Raises :class:`~sparkdl.errors.DataError` for rows that it cannot read.
        """


@dataclass(frozen=True)
class Asked:
    """The columns that are requested."""

    predictions: bool = True
    """Whether the predictions of the model's task are requested."""
    outputs: tuple[str, ...] | None = None
    """Which outputs of the card become columns; None: all of them."""
    vectors: bool = False
    """Whether a classifier returns logits and probabilities of all classes, for pyspark.ml's columns."""
    contributions: bool = False
    """Whether the contribution of each feature to the logit of the predicted class, or to the predicted number or
    score, is added (:mod:`sparkdl.scoring.contributions`)."""

    def shapes(self, card: ModelCard) -> dict[str, tuple[int, ...]]:
        """The shape per row of each output that becomes a column."""
        names = card.outputs if self.outputs is None else self.outputs
        return {name: card.outputs[name] for name in names}

    @classmethod
    def output(cls, name: str | None, card: ModelCard) -> Self:
        """Only this output, or everything if ``name`` is None. Raises :class:`ConfigError` for an unknown output."""
        if name is None:
            return cls()
        if name not in card.outputs:
            known = f"it was trained with {', '.join(card.outputs)}" if card.outputs else "it was trained without any"
            raise ConfigError(
                f"score.predict is {name!r}, which is not an output of the model: train.outputs names them, and {known}"
            )
        return cls(predictions=False, outputs=(name,))


@dataclass(frozen=True)
class Predictor:
    """A model with its card, which describes its inputs and outputs."""

    model: Model | RankingModel
    card: ModelCard
    labels: pa.Array
    """The labels by class index, in their own type."""
    task: Task
    """Interprets the outputs and turns them into columns."""
    asked: Asked = Asked()

    @classmethod
    def load(
        cls,
        folder: str | Path,
        asked: Asked = Asked(),
        *,
        device: str = "cpu",
        trusted: Collection[str] = (),
        form: FormChoice = "original",
    ) -> "Predictor":
        """Open a model's folder; see :func:`sparkdl.tracking.download`.

        A network computes on ``device``, an ensemble on the CPU. Both may have forms
        (:func:`sparkdl.scoring.open_form.open_network`, :func:`sparkdl.extreme.ensemble.open_model`).

        Nothing in the folder is executed. A network that could not be exported is built by the code of its module,
        which must be ``trusted``. Raises :class:`~sparkdl.errors.ModelError` if a file is missing, damaged or altered.
        """
        card = ModelCard.load(folder)
        task = answering_task(card, asked)
        # Language models are summed up to one likelihood per text instead: their logits would not fit into memory.
        has_logits = asked.predictions and card.task != "language_modelling"
        predicted: dict[str, tuple[int, ...]] = {LOGITS: (task.outputs,)} if has_logits else {}
        model = _open_model(Path(folder), card, predicted | asked.shapes(card), device, trusted, form)
        return cls(model, card, card.read_labels(folder), task, asked)

    def answer(
        self, column: pa.Array | pa.ChunkedArray, *, top_k: int = TOP_K, batch_size: int = BATCH_SIZE
    ) -> list[pa.Array]:
        """The predictions for an Arrow column of inputs: one Arrow array per field of ``task.answer``.

        The column ``top_k`` has that many classes, or all if there are fewer, the most likely first. Raises
        :class:`~sparkdl.errors.DataError` for rows that are null or of another size.
        """
        top_k = min(top_k, len(self.labels))
        if self.card.labels:
            found = cast(RankingModel, self.model).top_k(column, top_k, batch_size=batch_size)
            return ranked(self.labels, *found)
        if self.card.task == "language_modelling":
            likelihoods = cast("NetworkModel", self.model).log_likelihoods(column, batch_size=batch_size)
            return self.task.answers(likelihoods, self.labels, top_k=top_k)
        outputs = cast(Model, self.model).outputs(column, batch_size=batch_size)
        answers = self.task.answers(outputs[LOGITS], self.labels, top_k=top_k) if self.asked.predictions else []
        answers += [column_of(outputs[name]) for name in self.asked.shapes(self.card)]
        if self.asked.contributions:
            task, network = cast(ClassVectors | Ranking | Regression, self.task), cast("NetworkModel", self.model)
            answers.append(lists(network.contributions(column, task.values, batch_size=batch_size).numpy()))
        return answers


def answering_task(card: ModelCard, asked: Asked = Asked()) -> Task:
    """The model's task; its ``answer`` lists the requested columns: predictions, then outputs, then contributions."""
    labels = arrow_type(card.label_type)
    task = ClassVectors(card.num_classes, labels) if asked.vectors else create_task(card, link=card.link)
    predictions = task.answer if asked.predictions else ()
    more = [pa.field("contributions", pa.list_(pa.float64()))] if asked.contributions else []
    task.answer = pa.schema([*predictions, *output_columns(asked.shapes(card)), *more])
    return task


def _open_model(
    folder: Path,
    card: ModelCard,
    shapes: Mapping[str, Sequence[int]],
    device: str,
    trusted: Collection[str],
    form: FormChoice,
) -> Model | RankingModel:
    """A network or an ensemble of hashed meta-models. Imports are local: neither needs the packages of the other."""
    if card.labels:
        from sparkdl.extreme.ensemble import open_model as open_ensemble

        return open_ensemble(folder, card.input, card.labels.classes, form=form)
    from sparkdl.scoring.network import open_model as open_network

    return open_network(folder, card.inputs or card.input, shapes, device=device, trusted=trusted, form=form)
