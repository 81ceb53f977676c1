"""The teacher of ``train.teacher``: checked on the driver, evaluated in Spark tasks, once per dataset."""

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import torch
from pyspark.sql import SparkSession
from torch import nn

from sparkdl.data import Dataset
from sparkdl.data.card import PREPROCESSING
from sparkdl.data.job_errors import own_errors
from sparkdl.data.labels import read_labels
from sparkdl.data.model_card import ModelCard
from sparkdl.data.teacher_answers import TeacherAnswers
from sparkdl.errors import ConfigError, DatasetError, ModelError
from sparkdl.extreme.ensemble_card import ENSEMBLE_NAME
from sparkdl.inputs.spec import InputSpec
from sparkdl.inputs.tensors import Inputs, answer
from sparkdl.models import NETWORK_FILE, load_network, logits_of
from sparkdl.models.network_file import module_of
from sparkdl.sessions import default_parallelism
from sparkdl.settings import Train
from sparkdl.storage import hash_file, hash_folder, join, remove, upload_files
from sparkdl.training.checks.some_rows import some_rows
from sparkdl.training.task_to_train import task_to_train
from sparkdl.training.teachers.asking import AnsweringTask, TeacherModel

__all__ = ["ReadyTeacher", "ready_teacher"]

log = logging.getLogger(__name__)

KEPT = 32
"""Classes per row in an ensemble's output; all other classes together have hardly any probability."""


@dataclass(frozen=True)
class ReadyTeacher:
    """A teacher that fits a dataset."""

    name: str
    members: tuple[TeacherModel, ...]
    """The teacher's models, with folders on the driver; if there are several, all are networks."""
    answers: TeacherAnswers
    """Where the teacher's outputs are stored."""

    def answered(self, dataset: Dataset, spark: SparkSession) -> Dataset:
        """The dataset with the teacher's outputs for the training rows, which a Spark job computes unless they exist.

        Runs on the driver. After an interruption, only the remaining row groups are computed.

        Raises :class:`DataError` for rows whose output is not finite, :class:`~sparkdl.errors.DatasetError` for rows
        that are missing or were altered, and :class:`~sparkdl.errors.StorageError`.
        """
        if not self.answers.are_complete:
            place = join(self.answers.folder, f"teacher-{uuid4().hex}")  # another run may do the same at this time
            log.info("asking the teacher %s about %s training rows", self.name, f"{dataset.rows('train'):,}")
            folders = [join(place, str(number)) for number in range(len(self.members))]
            there = tuple(replace(each, folder=at) for each, at in zip(self.members, folders, strict=True))
            task = AnsweringTask(dataset, self.answers, there)
            groups = len(dataset.row_groups("train"))
            tasks = min(groups, default_parallelism(spark))
            try:
                for each, folder in zip(self.members, folders, strict=True):
                    upload_files(folder, Path(each.folder))
                with own_errors(self.answers.folder):
                    spark.range(groups, numPartitions=tasks).mapInArrow(task, "number bigint").collect()
            finally:
                remove(place)
            self.answers.complete()
        return replace(dataset, answers=self.answers)


def ready_teacher(dataset: Dataset, settings: Train, folders: Sequence[Path]) -> ReadyTeacher:
    """Check the teacher that the settings name, whose models' ``folders`` are here. Runs on the driver.

    Raises :class:`ConfigError` for a task without teachers and for a model that does not fit this dataset, and
    :class:`ModelError` for a damaged model.
    """
    assert settings.teacher
    task, uris = task_to_train(dataset.card, settings), settings.teacher.models
    if not task.learns_from_teachers:
        raise ConfigError(
            "train.teacher is for classification, several labels per row (multi_label) and regression, but"
            f" {dataset.path} was prepared for {task.name}; leave it out"
        )
    found = [_member(dataset, folder, uri) for folder, uri in zip(folders, uris, strict=True)]
    kept = next((each.kept for each in found if each.kept), None)
    if kept and len(found) > 1:
        raise ConfigError(
            f"train.teacher: {', '.join(uris)} are not all networks: an ensemble for very many classes teaches alone"
        )
    digests = [[each.digest, each.member.order] for each in found]
    known_by = json.dumps([dataset.digest, *(digests[0] if len(digests) == 1 else digests)])
    name = hashlib.sha256(known_by.encode()).hexdigest()[:32]
    answers = TeacherAnswers(join(settings.run_dir, "teachers", name), len(found[0].member.order), kept)
    return ReadyTeacher(", ".join(uris), tuple(each.member for each in found), answers)


class _Fitting(NamedTuple):
    """A model that fits the dataset."""

    member: TeacherModel
    digest: str
    kept: int | None
    """The number of classes per row in its output; None for all."""


def _member(dataset: Dataset, folder: Path, uri: str) -> _Fitting:
    card = ModelCard.load(folder)
    names = _names(card, folder)
    _check_card(card, names, dataset, uri)
    ours = dataset.preprocessing_path and hash_folder(dataset.preprocessing_path)
    theirs = hash_folder(str(folder / PREPROCESSING)) if card.preprocessing else None
    if ours != theirs:
        raise ConfigError(
            f"train.teacher: {uri} was trained on inputs that other rows or settings of `prepare` have preprocessed,"
            f" so its inputs differ from those of {dataset.path}; train a teacher on this dataset"
        )
    numbers = {name: number for number, name in enumerate(names)}
    order = tuple(numbers[name] for name in dataset.label_names) or (0,)
    if card.labels is None:
        _check_network(folder, dataset, len(order), uri)
    file, kept = (ENSEMBLE_NAME, min(KEPT, len(order))) if card.labels else (NETWORK_FILE, None)
    return _Fitting(TeacherModel(str(folder), order), hash_file(str(folder / file)), kept)


def _names(card: ModelCard, folder: Path) -> tuple[str, ...]:
    """The teacher's classes."""
    if card.labels is None:
        return card.label_names
    try:
        return tuple(read_labels(str(folder), card.labels).column("name").to_pylist())
    except DatasetError as error:
        raise ModelError(f"train.teacher: the model in {folder} is damaged: {error}") from None


def _check_network(folder: Path, dataset: Dataset, outputs: int, uri: str) -> None:
    """Raise :class:`ConfigError` or :class:`ModelError` unless a network can process the dataset's rows."""
    if module := module_of(folder / NETWORK_FILE):
        raise ConfigError(
            f"train.teacher: the network of {uri} can only be built by the code of {module}, which tasks do not run for"
            " a teacher; choose a network that could be exported"
        )
    _try(load_network(folder / NETWORK_FILE), some_rows(dataset), outputs, uri)


def _check_card(card: ModelCard, names: Sequence[str], dataset: Dataset, uri: str) -> None:
    """Raise :class:`ConfigError` unless a model was trained for the dataset's labels and inputs."""
    if card.labels and (dataset.card.task, dataset.card.in_lists) != ("classification", True):
        raise ConfigError(
            f"train.teacher: {uri} is an ensemble for very many classes, which reads sparse rows and teaches"
            f" classification; prepare {dataset.path} with `prepare.sparse: true` and `prepare.task: classification`"
        )
    if card.task != dataset.card.task:
        raise ConfigError(
            f"train.teacher: {uri} was trained for {card.task}, and {dataset.path} was prepared for {dataset.card.task}"
        )
    ours, theirs = set(dataset.label_names), set(names)
    if lacking := next((name for name in dataset.label_names if name not in theirs), None):
        raise ConfigError(f"train.teacher: {uri} does not know the class {lacking!r} of {dataset.path}")
    if more := next((name for name in names if name not in ours), None):
        raise ConfigError(f"train.teacher: {uri} predicts the class {more!r}, which {dataset.path} does not have")
    reads, has = _described(card.inputs, card.unnamed), _described(dataset.card.inputs, dataset.card.unnamed)
    if reads != has:
        raise ConfigError(
            f"train.teacher: {uri} reads {reads}, and {dataset.path} has {has}; a teacher reads the same inputs"
        )


def _described(inputs: Mapping[str, InputSpec], unnamed: InputSpec | None) -> str:
    """A description of the inputs, as far as it matters to a network."""
    specs: Mapping[str, InputSpec | None] = inputs or {"": unnamed}
    return ", ".join(_told(name, spec) for name, spec in specs.items() if spec)


def _told(name: str, spec: InputSpec) -> str:
    # For a network, sparse and dense rows are the same.
    kind = "vector" if spec.kind == "sparse" else spec.kind
    of = f" of {spec.vocabulary:,} values" if spec.vocabulary else ""
    return f"{name} ".lstrip() + f"{kind} {' x '.join(map(str, spec.shape))} {spec.dtype}{of}"


def _try(network: nn.Module, rows: Inputs, classes: int, uri: str) -> None:
    """Raise :class:`ModelError` unless a network's outputs for some rows have ``classes`` numbers per row."""
    with torch.inference_mode():
        try:
            found: Any = logits_of(answer(network, rows))
        except Exception as error:  # operations on tensors may raise anything
            raise ModelError(
                f"train.teacher: {uri} cannot read rows of the dataset: {type(error).__name__}:"
                f" {(str(error).splitlines() or [''])[0]}"
            ) from error
    if found.shape != (2, classes):
        raise ModelError(f"train.teacher: {uri} returns {tuple(found.shape)} for two rows, not {(2, classes)}")
