"""The parts of a dataset's card: files, splits, and their counts."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = [
    "File",
    "Hash",
    "InPlace",
    "LabelScale",
    "LabelsFile",
    "LinkFunction",
    "RowGroupsFile",
    "SparseCounts",
    "SplitCard",
    "TableVersion",
]

Count = Annotated[int, Field(ge=0)]
LinkFunction = Literal["identity", "log"]
"""The output of a regression network: the number itself, or with ``log`` its logarithm."""
Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Part(BaseModel):
    """The base of all parts of a card: unknown keys are errors, and values cannot change after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class File(_Part):
    """A Parquet file with one row group, as cards before format 3 list them."""

    path: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}/[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$")]
    """``split/name.parquet``, relative to the dataset's folder. The pattern excludes paths outside of it."""
    rows: Annotated[int, Field(gt=0)]
    bytes: Annotated[int, Field(gt=0)]
    sha256: Hash
    crc32: Annotated[int, Field(ge=0, lt=2**32)]
    """The checksum that a rank verifies when it first reads the file. CRC-32 takes less time than reading."""
    inputs_at: Count
    """The offset of the inputs in the file, which are stored contiguously; an image has its length in front (4 bytes).
    Zero for sparse rows, which are not stored contiguously."""
    labels_at: Count
    """The offset of the labels in the file, stored contiguously as ``LabelSpec`` describes; zero for sparse rows."""
    weights_at: Annotated[Count, Field(exclude_if=lambda value: value == 0)] = 0
    """The offset of the weights in the file, which are float64; zero if rows have none."""


class LabelsFile(_Part):
    """The file beside the card with the names of very many classes.

    Parquet with the columns ``name`` and ``count`` (training rows that have the label); its row number is the class
    index.
    """

    classes: Annotated[int, Field(gt=0)]
    bytes: Annotated[int, Field(gt=0)]
    sha256: Hash


class RowGroupsFile(_Part):
    """The file beside the card that describes the row groups; see :mod:`sparkdl.data.row_groups`."""

    bytes: Annotated[int, Field(gt=0)]
    sha256: Hash


class InPlace(_Part):
    """Where rows that were not copied are, and how to read them."""

    folder: str
    """The folder of all files. It is not part of the digest; the content is."""
    label: str
    """The column of labels."""
    weight: str | None = None
    """The column of weights, if rows have weights."""
    seed: int
    fractions: dict[str, float]
    """The shares of the rows in splits other than ``train``; see :mod:`sparkdl.data.in_place.drawing`."""


class TableVersion(_Part):
    """The table from which rows were read. It is not part of the digest; the content is."""

    format: Literal["delta", "iceberg"]
    table: str
    """The table's folder, or its name in the catalog."""
    version: int
    """Delta Lake's version, or the id of Iceberg's snapshot."""

    def __str__(self) -> str:
        return f"{self.format} {self.table}, {'version' if self.format == 'delta' else 'snapshot'} {self.version}"


class SparseCounts(_Part):
    """Sums over the rows of a sparse split."""

    values: Count
    """Nonzero features."""
    labels: Count
    """Labels of all rows, including unseen ones."""
    unseen: Count
    """Labels that the training split does not have; their class index is -1."""
    empty: Count
    """Rows without a feature that the training split has."""


class SplitCard(_Part):
    """The rows of one split."""

    num_rows: Annotated[Count, Field(exclude_if=lambda value: value == 0)] = 0
    num_groups: Annotated[Count, Field(exclude_if=lambda value: value == 0)] = 0
    """The number of row groups, each of which is a file; a file beside the card describes them."""
    files: Annotated[tuple[File, ...], Field(exclude_if=lambda value: not value)] = ()
    """Before format 3: the row groups, in the order of the rows; their sizes differ by at most one row."""
    class_counts: tuple[Count, ...]
    """The rows of each class, in the order of the label names; empty if there are no label names."""
    sparse: SparseCounts | None = None
    metadata_sha256: Annotated[Hash | None, Field(exclude_if=lambda value: value is None)] = None
    """The hash of the file for stock Petastorm readers; not in cards of older versions."""

    @property
    def rows(self) -> int:
        """The number of rows in the split."""
        return self.num_rows or sum(file.rows for file in self.files)

    @model_validator(mode="after")
    def _balanced(self) -> Self:
        if bool(self.num_rows) != bool(self.num_groups) or bool(self.files) == bool(self.num_groups):
            raise ValueError("a split must have either num_groups and num_rows, or files")
        if not self.files:
            return self
        sizes = {file.rows for file in self.files}
        if max(sizes) - min(sizes) > 1:
            raise ValueError(f"row groups must be of equal size, give or take one row; found {sorted(sizes)}")
        return self


class LabelScale(_Part):
    """Mean and standard deviation of the labels of regression, over the training split."""

    mean: Annotated[float, Field(allow_inf_nan=False)]
    std: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    """1 if all labels are equal."""
