"""The teacher of ``train.teacher``: checked on the driver, asked in Spark tasks, once for a dataset."""

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from pyspark import TaskContext
from pyspark.sql import SparkSession
from torch import nn

from sparkdl.cluster import device_of_task, limited_threads
from sparkdl.data import Dataset
from sparkdl.data.card import PREPROCESSING
from sparkdl.data.job_errors import own_errors
from sparkdl.data.model_card import ModelCard
from sparkdl.data.reading.loader import read_row_group
from sparkdl.data.teacher_answers import TeacherAnswers
from sparkdl.errors import ConfigError, DataError, ModelError
from sparkdl.inputs.spec import InputSpec
from sparkdl.inputs.tensors import Inputs, answer, moved
from sparkdl.models import NETWORK_FILE, load_network, logits_of
from sparkdl.models.network_file import module_of
from sparkdl.sessions import default_parallelism
from sparkdl.settings import Train
from sparkdl.storage import download_files, hash_file, hash_folder, join, local_path, remove, upload_files
from sparkdl.training.some_rows import some_rows
from sparkdl.training.task_to_train import task_to_train

__all__ = ["ReadyTeacher", "ready_teacher"]

log = logging.getLogger(__name__)

BATCH_ROWS = 512


@dataclass(frozen=True)
class ReadyTeacher:
    """A teacher that fits a dataset."""

    model: str
    """Its name."""
    folder: Path
    """The model's, on the driver."""
    answers: TeacherAnswers
    """Where its answers are, or are to be."""
    order: tuple[int, ...]
    """By the dataset's class index, the teacher's."""

    def answered(self, dataset: Dataset, spark: SparkSession) -> Dataset:
        """The dataset with its answers to the training rows, for which a Spark job asks it unless they are there.

        Runs on the driver. A job that was interrupted goes on with the row groups that it has not answered.

        Raises :class:`DataError` for rows to which its answer is no number, :class:`~sparkdl.errors.DatasetError` for
        rows that are missing or were altered, and :class:`~sparkdl.errors.StorageError`.
        """
        if not self.answers.are_complete:
            network = join(self.answers.folder, f"network-{uuid4().hex}")  # another run may be asking it, too
            log.info("asking the teacher %s about %s training rows", self.model, f"{dataset.rows('train'):,}")
            task = AnsweringTask(dataset, self.answers, network, self.order)
            groups = len(dataset.row_groups("train"))
            tasks = min(groups, default_parallelism(spark))
            try:
                upload_files(network, self.folder)
                with own_errors(self.answers.folder):
                    spark.range(groups, numPartitions=tasks).mapInArrow(task, "number bigint").collect()
            finally:
                remove(network)
            self.answers.complete()
        return replace(dataset, answers=self.answers)


@dataclass(frozen=True)
class AnsweringTask:
    """Writes a teacher's answers to the row groups whose numbers it is given. Runs in Spark tasks."""

    dataset: Dataset
    answers: TeacherAnswers
    network: str
    """The folder of its network, on storage that tasks reach."""
    order: tuple[int, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The numbers of the row groups that were answered."""
        context = TaskContext.get()
        device = device_of_task(context) if context else "cpu"
        numbers = [number for batch in batches for number in batch.column(0).to_pylist()]
        left = [number for number in numbers if not self.answers.has(number)]
        if left:
            with limited_threads(context.cpus() if context else 1):
                network = self._load().to(device)
                for number in left:
                    self.answers.write(number, self._answer(network, number, device))
        yield pa.RecordBatch.from_pydict({"number": pa.array(left, pa.int64())})

    def _load(self) -> nn.Module:
        if local := local_path(self.network):
            return load_network(local / NETWORK_FILE)
        with TemporaryDirectory() as folder:
            download_files(self.network, Path(folder))
            return load_network(Path(folder) / NETWORK_FILE)

    def _answer(self, network: nn.Module, number: int, device: str) -> NDArray[np.float32]:
        """Of shape (rows, classes), by the dataset's class index."""
        found = []
        with torch.inference_mode():
            for batch in read_row_group(self.dataset, "train", number, batch_size=BATCH_ROWS):
                logits = logits_of(answer(network, moved(batch.inputs, device))).float().cpu()
                found.append(logits[:, list(self.order)].numpy())
        logits_of_group: NDArray[np.float32] = np.concatenate(found)
        if bad := int(np.isnan(logits_of_group).any(axis=1).sum()):
            raise DataError(
                f"train.teacher: its answer to {bad} rows of {self.dataset.row_groups('train')[number].path} is no"
                " number; look there for extreme values, or choose another teacher"
            )
        if self.dataset.card.task == "classification":  # of whose logits only the differences matter
            logits_of_group -= logits_of_group.max(axis=1, keepdims=True)
        return logits_of_group


def ready_teacher(dataset: Dataset, settings: Train, folder: Path) -> ReadyTeacher:
    """Check the teacher that the settings name, whose ``folder`` is here. Runs on the driver.

    Raises :class:`ConfigError` for a task without teachers and for a model that is no teacher for this dataset, and
    :class:`ModelError` for one that is damaged.
    """
    assert settings.teacher
    uri, task = settings.teacher.model, task_to_train(dataset.card, settings)
    if not task.learns_from_teachers:
        raise ConfigError(
            f"train.teacher is for classification and for several labels a row (multi_label), and {dataset.path} was"
            f" prepared for {task.name}; leave it out"
        )
    card = ModelCard.load(folder)
    _check_card(card, dataset, uri)
    ours = dataset.preprocessing_path and hash_folder(dataset.preprocessing_path)
    theirs = hash_folder(str(folder / PREPROCESSING)) if card.preprocessing else None
    if ours != theirs:
        raise ConfigError(
            f"train.teacher: {uri} was trained on inputs that other rows or settings of `prepare` have preprocessed, so"
            f" that those of {dataset.path} mean something else to it; train a teacher on this dataset"
        )
    if module := module_of(folder / NETWORK_FILE):
        raise ConfigError(
            f"train.teacher: {uri} is a network that only the code of {module} can build, which tasks that ask a"
            " teacher do not run; take one that could be exported"
        )
    order = tuple(card.label_names.index(name) for name in dataset.label_names)
    _try(load_network(folder / NETWORK_FILE), some_rows(dataset), len(order), uri)
    known_by = json.dumps([dataset.digest, hash_file(str(folder / NETWORK_FILE)), order])
    name = hashlib.sha256(known_by.encode()).hexdigest()[:32]
    answers = TeacherAnswers(join(settings.run_dir, "teachers", name), len(order))
    return ReadyTeacher(uri, folder, answers, order)


def _check_card(card: ModelCard, dataset: Dataset, uri: str) -> None:
    """Raise :class:`ConfigError` unless a model was trained for the dataset's labels and inputs."""
    if card.labels:
        raise ConfigError(
            f"train.teacher: {uri} is an ensemble for very many classes, and a teacher is one network that answers for"
            " all classes; take a model that `sparkdl train` has made"
        )
    if card.task != dataset.card.task:
        raise ConfigError(
            f"train.teacher: {uri} was trained for {card.task}, and {dataset.path} was prepared for {dataset.card.task}"
        )
    if lacking := [name for name in dataset.label_names if name not in card.label_names]:
        raise ConfigError(f"train.teacher: {uri} does not know the class {lacking[0]!r} of {dataset.path}")
    if more := [name for name in card.label_names if name not in dataset.label_names]:
        raise ConfigError(f"train.teacher: {uri} tells the class {more[0]!r}, which {dataset.path} has not")
    theirs, ours = _described(card.inputs, card.unnamed), _described(dataset.card.inputs, dataset.card.unnamed)
    if theirs != ours:
        raise ConfigError(
            f"train.teacher: {uri} reads {theirs}, and {dataset.path} has {ours}; a teacher reads the same inputs"
        )


def _described(inputs: Mapping[str, InputSpec], unnamed: InputSpec | None) -> str:
    """The inputs in words, as far as they decide what a network can read."""
    specs: Mapping[str, InputSpec | None] = inputs or {"": unnamed}
    return ", ".join(_told(name, spec) for name, spec in specs.items() if spec)


def _told(name: str, spec: InputSpec) -> str:
    # Rows of a vector are the same to a network whether they are stored whole or sparse.
    kind = "vector" if spec.kind == "sparse" else spec.kind
    of = f" of {spec.vocabulary:,} values" if spec.vocabulary else ""
    return f"{name} ".lstrip() + f"{kind} {' x '.join(map(str, spec.shape))} {spec.dtype}{of}"


def _try(network: nn.Module, rows: Inputs, classes: int, uri: str) -> None:
    """Raise :class:`ModelError` unless a network answers some rows with a logit for each class."""
    with torch.inference_mode():
        try:
            found: Any = logits_of(answer(network, rows))
        except Exception as error:  # whatever operations on tensors may raise
            raise ModelError(
                f"train.teacher: {uri} cannot read rows of the dataset: {type(error).__name__}:"
                f" {(str(error).splitlines() or [''])[0]}"
            ) from error
    if found.shape != (2, classes):
        raise ModelError(f"train.teacher: {uri} answers {tuple(found.shape)} for two rows of {classes} classes")
