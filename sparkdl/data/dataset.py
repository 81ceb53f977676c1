"""A prepared dataset."""

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sparkdl.data.card import CARD_NAME, PREPROCESSING, ROW_GROUPS_NAME, Card, InputSpec
from sparkdl.data.card_parts import SplitCard
from sparkdl.data.file_checks import REPAIR
from sparkdl.data.label_spec import LabelSpec
from sparkdl.data.labels import read_labels
from sparkdl.data.row_groups import RowGroup, RowGroups, read_row_groups
from sparkdl.data.teacher_answers import TeacherAnswers
from sparkdl.data.verification import check_sizes, verify
from sparkdl.errors import DatasetError
from sparkdl.storage import join, read_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Dataset", "RowGroup"]


@dataclass(frozen=True)
class Dataset:
    """A prepared dataset in a folder. Cheap to pickle: it consists of the path and the card, without rows."""

    path: str
    card: Card
    answers: TeacherAnswers | None = None
    """The logits of a teacher for the training rows; batches of training rows contain them."""
    joined: tuple[str, ...] = ()
    """Splits whose rows are added to ``train``; see :meth:`joining`."""

    @classmethod
    def open(cls, path: str) -> "Dataset":
        """Read the card, and check the sizes of all files and the content of the preprocessing. Runs anywhere.

        If a split has more than 10,000 files, only 64 of them are checked here; problems with others are found by
        reading, or by :meth:`verify`. Raises :class:`DatasetError` if there is no dataset, the card is invalid, or a
        file is missing or truncated.
        """
        path = str(path).rstrip("/")
        try:
            text = read_file(join(path, CARD_NAME))
        except (FileNotFoundError, NotADirectoryError):
            raise DatasetError(f"there is no dataset in {path}: {CARD_NAME} is missing. Prepare it first.") from None
        dataset = cls(path, Card.from_json(text, origin=join(path, CARD_NAME)))
        check_sizes(dataset)
        return dataset

    def joining(self, *splits: str) -> "Dataset":
        """The same files, with the rows of these splits added to ``train``.

        Values that were computed from the training rows when the dataset was prepared do not change: classes, scales,
        means of weights. Raises :class:`DatasetError` for a split that does not exist.
        """
        for split in splits:
            self._split(split)
        return replace(self, joined=splits)

    @property
    def digest(self) -> str:
        """SHA-256 of the content; copies of the dataset have the same digest."""
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
        """Class names by class index. For sparse rows, each call reads them from their file."""
        if self.card.labels is None:
            return self.card.label_names
        return tuple(read_labels(self.path, self.card.labels).column("name").to_pylist())

    @property
    def class_names(self) -> tuple[str, ...]:
        """Readable names of the classes, by class index: ``prepare.class_names``, else the label itself."""
        names = self.card.settings.get("class_names", {})
        return tuple(names.get(label, label) for label in self.label_names)

    @property
    def label_counts(self) -> NDArray[np.int64]:
        """The training rows of each class, int64 of shape (classes,); read like ``label_names``."""
        if self.card.labels is None:
            return np.array(self.card.splits["train"].class_counts, np.int64)
        counts: NDArray[np.int64] = read_labels(self.path, self.card.labels).column("count").to_numpy()
        return counts

    @property
    def num_classes(self) -> int:
        """The number of classes in the training split."""
        return self.card.num_classes

    @property
    def input(self) -> InputSpec:
        """The single, unnamed input."""
        return self.card.input

    @property
    def named(self) -> dict[str, str]:
        """Its entries in MLflow: where it is, and from which version of which table it was made."""
        return {"dataset": self.path} | ({"dataset_table": str(self.card.table)} if self.card.table else {})

    @property
    def learned(self) -> str:
        """The labels in words, such as ``10 classes``."""
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
        """The columns that a caller passes to a model: raw columns, and whole structs and maps if it reads fields."""
        fields = self.card.fields
        return {
            fields[name][0] if name in fields else name: "any" if name in fields else kind
            for name, kind in self.raw_columns.items()
        }

    @property
    def preprocessing_path(self) -> str | None:
        """The folder of the fitted preprocessing; None if there is none."""
        return join(self.path, PREPROCESSING) if self.card.preprocessing else None

    def rows(self, split: str) -> int:
        """The number of rows in a split. Raises :class:`DatasetError` for a split that does not exist."""
        return sum(self._split(name).rows for name in self._parts(split))

    @property
    def is_even(self) -> bool:
        """Whether the row groups of a split differ by at most one row."""
        return not self.card.in_place and not self.joined

    def row_groups(self, split: str) -> RowGroups:
        """The row groups of a split, in the order of its rows.

        Raises :class:`DatasetError` if the file that describes them is missing, or was altered.
        """
        return RowGroups.laid_together([self._row_groups(name) for name in self._parts(split)])

    def verify(self, spark: "SparkSession | None" = None) -> None:
        """Compare the SHA-256 of every file with the card. Runs on the driver; with ``spark``, hashes in tasks.

        Raises :class:`DatasetError` with the first file that is missing, truncated or altered.
        """
        verify(self, spark)

    def _parts(self, split: str) -> tuple[str, ...]:
        return (split, *self.joined) if split == "train" else (split,)

    def _row_groups(self, split: str) -> RowGroups:
        card = self._split(split)
        if self.card.row_groups is None:
            return RowGroups.of_files(self.path, card.files)
        in_place = self.card.in_place.folder if self.card.in_place else None
        found = read_row_groups(self.path, self.card.row_groups, in_place).get(split)
        if found is None or (len(found), found.rows.sum()) != (card.num_groups, card.num_rows):
            raise DatasetError(f"{join(self.path, ROW_GROUPS_NAME)} does not have the card's row groups. {REPAIR}")
        return found

    def _split(self, name: str) -> SplitCard:
        if name not in self.card.splits:
            raise DatasetError(f"{self.path} has no split {name!r}; it has {', '.join(self.splits)}")
        return self.card.splits[name]
