"""A prepared dataset: what it holds, and whether its files are still the ones that were written."""

import hashlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkdl.data.card import CARD_NAME, LABELS_NAME, METADATA_NAME, PREPROCESSING, ROW_GROUPS_NAME, Card, InputSpec
from sparkdl.data.card_parts import SplitCard
from sparkdl.data.file_checks import REPAIR, altered, missing
from sparkdl.data.label_spec import LabelSpec
from sparkdl.data.labels import read_labels
from sparkdl.data.row_groups import RowGroup, RowGroups, read_row_groups
from sparkdl.data.teacher_answers import TeacherAnswers
from sparkdl.errors import DatasetError
from sparkdl.sessions import default_parallelism
from sparkdl.storage import exists, file_size, hash_file, hash_folder, join, list_folder, read_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Dataset", "RowGroup"]

_LISTED_FILES = 10_000
"""Of more files than these, opening looks at some: listing a million takes minutes on an object store."""
_SAMPLED_FILES = 64
_HASHED_AT_ONCE = 1024


@dataclass(frozen=True)
class Dataset:
    """A prepared dataset in a folder. Cheap to pickle: it consists of the path and the card, without rows."""

    path: str
    card: Card
    answers: TeacherAnswers | None = None
    """What a teacher answers to the training rows, which batches of them then have, too."""
    joined: tuple[str, ...] = ()
    """Splits whose rows are among those of ``train``; see :meth:`joining`."""

    @classmethod
    def open(cls, path: str) -> "Dataset":
        """Read the card and check that every file exists with its size, and the fitted pipeline whole. Runs anywhere.

        Of a split of more than 10,000 files it looks at 64, spread evenly; reading or :meth:`verify` finds the others.
        Raises :class:`DatasetError` when there is no dataset, the card is not valid, or a file is missing or truncated.
        """
        path = str(path).rstrip("/")
        try:
            text = read_file(join(path, CARD_NAME))
        except (FileNotFoundError, NotADirectoryError):
            raise DatasetError(f"there is no dataset in {path}: {CARD_NAME} is missing. Prepare it first.") from None
        dataset = cls(path, Card.from_json(text, origin=join(path, CARD_NAME)))
        for name, file in {LABELS_NAME: dataset.card.labels, ROW_GROUPS_NAME: dataset.card.row_groups}.items():
            if file is not None:
                _check_size(join(path, name), file.bytes, file_size(join(path, name)))
        dataset._check_preprocessing()
        for split in dataset.splits:
            dataset._check_files(split)
        return dataset

    def joining(self, *splits: str) -> "Dataset":
        """The same files, with these splits' rows among those of ``train``.

        What was computed from the training rows when the dataset was prepared does not change: classes, scales, means
        of weights. Raises :class:`DatasetError` for a split that is not there.
        """
        for split in splits:
            self._split(split)
        return replace(self, joined=splits)

    @property
    def digest(self) -> str:
        """SHA-256 of the content, the same wherever the dataset is copied to."""
        if not self.joined:
            return self.card.digest
        return hashlib.sha256(f"{self.card.digest} {' '.join(self.joined)}".encode()).hexdigest()

    @property
    def card_json(self) -> str:
        """The card's text."""
        return self.card.to_json()

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits, ``train`` first."""
        return tuple(sorted(self.card.splits.keys() - set(self.joined), key=lambda name: (name != "train", name)))

    @property
    def label_names(self) -> tuple[str, ...]:
        """Class names by class index; read from their file, each time, where rows are sparse."""
        if self.card.labels is None:
            return self.card.label_names
        return tuple(read_labels(self.path, self.card.labels).column("name").to_pylist())

    @property
    def class_names(self) -> tuple[str, ...]:
        """What people call the classes, by class index: ``prepare.class_names``, and else the label itself."""
        names = self.card.settings.get("class_names", {})
        return tuple(names.get(label, label) for label in self.label_names)

    @property
    def label_counts(self) -> NDArray[np.int64]:
        """Training rows that have each class, int64 of shape (classes,); read as ``label_names`` are."""
        if self.card.labels is None:
            return np.array(self.card.splits["train"].class_counts, np.int64)
        counts: NDArray[np.int64] = read_labels(self.path, self.card.labels).column("count").to_numpy()
        return counts

    @property
    def num_classes(self) -> int:
        """How many classes the training split has."""
        return self.card.num_classes

    @property
    def input(self) -> InputSpec:
        """What a model is fed with."""
        return self.card.input

    @property
    def named(self) -> dict[str, str]:
        """What records say of it: where it lies, and of which version of which table it was made."""
        return {"dataset": self.path} | ({"dataset_table": str(self.card.table)} if self.card.table else {})

    @property
    def learned(self) -> str:
        """What there is to learn from the labels, in words."""
        if self.card.task == "regression":
            return "a number"
        if self.card.task == "ranking":
            return "the order of the rows of a group"
        if self.card.task == "language_modelling":
            return "the next token"
        return f"{self.num_classes:,} classes" + (", any of them in a row" if self.card.task == "multi_label" else "")

    @property
    def label(self) -> LabelSpec:
        """How labels are stored."""
        return self.card.label

    @property
    def raw_columns(self) -> dict[str, str]:
        """The raw columns that scoring needs, with their Spark types."""
        return self.card.raw_columns

    @property
    def served_columns(self) -> dict[str, str]:
        """The columns that a caller of a model hands in: raw ones, and whole structs and maps where it reads fields."""
        fields = self.card.fields
        return {
            fields[name][0] if name in fields else name: "any" if name in fields else kind
            for name, kind in self.raw_columns.items()
        }

    @property
    def preprocessing_path(self) -> str | None:
        """Where the fitted ``pyspark.ml`` pipeline is saved, if the input needs one."""
        return join(self.path, PREPROCESSING) if self.card.preprocessing else None

    def rows(self, split: str) -> int:
        """How many rows a split has. Raises :class:`DatasetError` for a split that is not there."""
        return sum(self._split(name).rows for name in self._parts(split))

    @property
    def is_even(self) -> bool:
        """Whether the row groups of a split differ by at most one row."""
        return not self.card.in_place and not self.joined

    def row_groups(self, split: str) -> RowGroups:
        """The row groups of a split, in the order of its rows.

        Raises :class:`DatasetError` when the file that says what they are is missing, or is not the card's.
        """
        return RowGroups.laid_together([self._row_groups(name) for name in self._parts(split)])

    def _parts(self, split: str) -> tuple[str, ...]:
        return (split, *self.joined) if split == "train" else (split,)

    def _row_groups(self, split: str) -> RowGroups:
        card = self._split(split)
        if self.card.row_groups is None:
            return RowGroups.of_files(self.path, card.files)
        in_place = self.card.in_place.folder if self.card.in_place else None
        found = read_row_groups(self.path, self.card.row_groups, in_place).get(split)
        if found is None or (len(found), found.rows.sum()) != (card.num_groups, card.num_rows):
            raise DatasetError(f"{join(self.path, ROW_GROUPS_NAME)} has other row groups than its card. {REPAIR}")
        return found

    def verify(self, spark: "SparkSession | None" = None) -> None:
        """Compare the SHA-256 of every file with the card. Runs on the driver; with ``spark``, hashes in tasks.

        Raises :class:`DatasetError` that names the first file that is missing, truncated or altered.
        """
        self._check_preprocessing()
        self._check_metadata()
        if self.card.labels:
            read_labels(self.path, self.card.labels)
        path = join(self.path, ROW_GROUPS_NAME)
        if self.card.row_groups and hash_file(path) != self.card.row_groups.sha256:
            raise DatasetError(altered(path))
        for split in self.splits:
            problem = _first_problem(self.row_groups(split)) if spark is None else self._problem_in_tasks(spark, split)
            if problem:
                raise DatasetError(problem)

    def _split(self, name: str) -> SplitCard:
        if name not in self.card.splits:
            raise DatasetError(f"{self.path} has no split {name!r}; it has {', '.join(self.splits)}")
        return self.card.splits[name]

    def _check_files(self, split: str) -> None:
        """Compare the sizes of a split's files with the card's."""
        groups = self.row_groups(split)
        if self.card.in_place is None and len(groups) <= _LISTED_FILES:
            sizes = _sizes(join(self.path, split))
            found: Iterable[tuple[RowGroup, int | None]] = (
                (group, sizes.get(group.path.rpartition("/")[2])) for group in groups
            )
        else:
            sample = [groups[number] for number in np.linspace(0, len(groups) - 1, _SAMPLED_FILES, dtype=int)]
            if self.card.in_place and len(groups) <= _LISTED_FILES:
                sample = list({group.path: group for group in groups}.values())
            with ThreadPoolExecutor() as pool:
                found = zip(sample, pool.map(file_size, (group.path for group in sample)), strict=True)
        for group, size in found:
            _check_size(group.path, group.bytes, size)

    def _problem_in_tasks(self, spark: "SparkSession", split: str) -> str:
        """What is wrong with the first file of a split that is not as it was written."""

        def hash_files(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            groups = self.row_groups(split)
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    if problem := _problem_with(groups[number]):
                        yield pa.RecordBatch.from_pydict({"id": [number], "problem": [problem]})
                        return

        groups = self.card.splits[split].num_groups or len(self.row_groups(split))
        tasks = min(groups, default_parallelism(spark))
        rows = spark.range(groups, numPartitions=tasks).mapInArrow(hash_files, "id bigint, problem string")
        first = rows.orderBy("id").limit(1).collect()
        return first[0].problem if first else ""

    def _check_preprocessing(self) -> None:
        """Compare the fitted pipeline, some small files, with the card; cards made before it was hashed say nothing."""
        path, expected = self.preprocessing_path, self.card.preprocessing_sha256
        if path is None or expected is None:
            return
        try:
            found = hash_folder(path)
        except FileNotFoundError:
            raise DatasetError(missing(path)) from None
        if found != expected:
            raise DatasetError(altered(path))

    def _check_metadata(self) -> None:
        """Compare what Petastorm's readers would trust with the card; copies without hidden files lack it."""
        for split, card in self.card.splits.items():
            path = join(self.path, split, METADATA_NAME)
            if card.metadata_sha256 and exists(path) and hash_file(path) != card.metadata_sha256:
                raise DatasetError(altered(path))


def _sizes(folder: str) -> dict[str, int]:
    """File sizes by name, from one listing of the folder."""
    return {entry.name: entry.size for entry in list_folder(folder) if not entry.is_folder}


def _check_size(path: str, expected: int, size: int | None) -> None:
    if size is None:
        raise DatasetError(missing(path))
    if size != expected:
        raise DatasetError(f"{path} has {size:,} bytes instead of {expected:,}. {REPAIR}")


def _problem_with(group: RowGroup) -> str:
    """What is wrong with a file's content; empty when nothing is."""
    try:
        unaltered = group.hash_again() == group.sha256
    except FileNotFoundError:
        return missing(group.path)
    return "" if unaltered else altered(group.path)


def _first_problem(groups: RowGroups) -> str:
    with ThreadPoolExecutor() as pool:
        for start in range(0, len(groups), _HASHED_AT_ONCE):
            for problem in pool.map(_problem_with, groups[start : start + _HASHED_AT_ONCE]):
                if problem:
                    return problem
    return ""
