"""Computes a teacher's outputs for the rows of a dataset. Runs in Spark tasks."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from pyspark import TaskContext

from sparkdl.cluster import device_of_task, limited_threads
from sparkdl.data import Dataset
from sparkdl.data.model_card import ModelCard
from sparkdl.data.reading.loader import read_row_group
from sparkdl.data.reading.read import verified_content
from sparkdl.data.reading.sparse import to_batch
from sparkdl.data.sparse_rows import read_rows
from sparkdl.data.teacher_answers import TeacherAnswers
from sparkdl.errors import DataError
from sparkdl.inputs.tensors import answer, moved
from sparkdl.models import NETWORK_FILE, load_network, logits_of
from sparkdl.storage import download_files, local_path
from sparkdl.training.tasks import Regression, create_task

__all__ = ["AnsweringTask", "TeacherModel"]

BATCH_ROWS = 512


class Answers(NamedTuple):
    """A teacher's outputs for the rows of a row group, in the order of its file."""

    logits: NDArray[np.float32]
    """Of shape (rows, classes) or (rows, kept); for regression (rows, 1), in standard deviations of the labels."""
    classes: NDArray[np.int64] | None = None
    """Of shape (rows, kept): the dataset's classes of the logits; None if they are of all classes."""


class AnsweringModel(Protocol):
    """An opened teacher."""

    def answers(self, dataset: Dataset, number: int) -> Answers:
        """The outputs for a row group of the training split."""


@dataclass(frozen=True)
class TeacherModel:
    """One of a teacher's models."""

    folder: str
    """The folder of the model's files; in a task, on storage that tasks reach."""
    order: tuple[int, ...]
    """The model's class index by the dataset's class index; (0,) for regression."""


@dataclass(frozen=True)
class AnsweringTask:
    """Writes a teacher's outputs for row groups, given by their numbers. Runs in Spark tasks."""

    dataset: Dataset
    answers: TeacherAnswers
    members: tuple[TeacherModel, ...]
    """The teacher's models; the output is the mean of their logits."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Returns the numbers of the completed row groups."""
        context = TaskContext.get()
        device = device_of_task(context) if context else "cpu"
        numbers = [number for batch in batches for number in batch.column(0).to_pylist()]
        left = [number for number in numbers if not self.answers.has(number)]
        if left:
            with limited_threads(context.cpus() if context else 1), ExitStack() as stack:
                models = [
                    self._open(stack.enter_context(_here(each.folder)), each.order, device) for each in self.members
                ]
                model = models[0] if len(models) == 1 else SeveralTeachers(models)
                for number in left:
                    logits, classes = model.answers(self.dataset, number)
                    self._check(logits, number)
                    self.answers.write(number, logits, classes)
        yield pa.RecordBatch.from_pydict({"number": pa.array(left, pa.int64())})

    def _open(self, folder: str | Path, order: tuple[int, ...], device: str) -> AnsweringModel:
        card = ModelCard.load(folder)
        if card.labels is None:
            return NetworkTeacher(Path(folder), card, order, device)
        assert self.answers.kept
        return EnsembleTeacher(Path(folder), order, self.answers.kept)

    def _check(self, logits: NDArray[np.float32], number: int) -> None:
        if bad := int(np.isnan(logits).any(axis=1).sum()):
            raise DataError(
                f"train.teacher: its answer to {bad} rows of {self.dataset.row_groups('train')[number].path} is no"
                " number; look there for extreme values, or choose another teacher"
            )


def _here(folder: str) -> AbstractContextManager[str | Path]:
    """A local path of the folder, which is copied if it is on remote storage."""
    if local := local_path(folder):
        return nullcontext(local)
    copied = TemporaryDirectory()
    download_files(folder, Path(copied.name))
    return copied


@dataclass(frozen=True)
class SeveralTeachers:
    """Several networks together; for classes, their outputs give the geometric mean of their probabilities."""

    models: Sequence[AnsweringModel]

    def answers(self, dataset: Dataset, number: int) -> Answers:
        """See :class:`AnsweringModel`."""
        return Answers(np.mean([model.answers(dataset, number).logits for model in self.models], axis=0))


class NetworkTeacher:
    """One network, with logits of all classes, or a number."""

    def __init__(self, folder: Path, card: ModelCard, order: tuple[int, ...], device: str) -> None:
        self._network, self._device = load_network(folder / NETWORK_FILE).to(device), device
        self._order, self._task = list(order), create_task(card, link=card.link)

    def answers(self, dataset: Dataset, number: int) -> Answers:
        """See :class:`AnsweringModel`."""
        with torch.inference_mode():
            found = [
                logits_of(answer(self._network, moved(batch.inputs, self._device))).float().cpu()[:, self._order]
                for batch in read_row_group(dataset, "train", number, batch_size=BATCH_ROWS)
            ]
        outputs = torch.cat(found)
        scale = dataset.card.label_scale
        if isinstance(self._task, Regression) and scale:  # the teacher's rows may have another mean
            outputs = ((self._task.values(outputs) - scale.mean) / scale.std).float()
        elif dataset.card.task == "classification":  # only differences of logits matter
            outputs -= outputs.amax(1, keepdim=True)
        return Answers(outputs.numpy())


class EnsembleTeacher:
    """An ensemble for very many classes, with the likeliest classes of each row."""

    def __init__(self, folder: Path, order: tuple[int, ...], kept: int) -> None:
        from sparkdl.extreme.ensemble import Ensemble  # which loads Numba

        self._ensemble, self._kept = Ensemble.open(folder), kept
        self._numbers = np.empty(len(order), np.int64)
        """The dataset's class index by the ensemble's class index."""
        self._numbers[list(order)] = np.arange(len(order))

    def answers(self, dataset: Dataset, number: int) -> Answers:
        """See :class:`AnsweringModel`. Scores that are not finite become NaN."""
        rows = read_rows(verified_content(dataset.row_groups("train")[number]))
        found = []
        for start in range(0, rows.rows, BATCH_ROWS):
            batch = to_batch(rows.part(start, min(start + BATCH_ROWS, rows.rows)))
            found.append(self._ensemble.top_k(batch, self._ensemble.logits(batch), self._kept))
        scores = torch.cat([each.scores for each in found])
        classes = torch.cat([each.classes for each in found]).numpy()
        scores = torch.where(scores.isfinite(), scores - scores[:, :1], torch.nan)
        return Answers(scores.numpy(), self._numbers[classes])
