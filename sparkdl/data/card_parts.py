"""The parts of a dataset's card: files, splits, and what is counted of them."""

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
"""What the network of a regression answers of the number, or with ``log`` its logarithm."""
Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Part(BaseModel):
    """What all parts of a card share: unknown keys are errors, and nothing changes after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class File(_Part):
    """One Parquet file, which holds one row group, as cards before format 3 list them."""

    path: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}/[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$")]
    """``split/name.parquet``, relative to the dataset's folder; it cannot point outside."""
    rows: Annotated[int, Field(gt=0)]
    bytes: Annotated[int, Field(gt=0)]
    sha256: Hash
    crc32: Annotated[int, Field(ge=0, lt=2**32)]
    """The checksum that a rank verifies when it first reads the file; CRC-32 because it costs less than the reading."""
    inputs_at: Count
    """Where in the file the inputs begin; they lie one after another, an image with its length in front (4 bytes). Zero
    where rows are sparse, which do not lie like that."""
    labels_at: Count
    """Where in the file the labels begin, one after another as ``LabelSpec`` says; zero where rows are sparse."""
    weights_at: Annotated[Count, Field(exclude_if=lambda value: value == 0)] = 0
    """The same of their weights, which are float64; zero where rows have none."""


class LabelsFile(_Part):
    """The file beside the card with the names of very many classes.

    Parquet with the columns ``name`` and ``count`` (training rows that have the label); its row number is the class
    index.
    """

    classes: Annotated[int, Field(gt=0)]
    bytes: Annotated[int, Field(gt=0)]
    sha256: Hash


class RowGroupsFile(_Part):
    """The file beside the card that says what each row group is; see :mod:`sparkdl.data.row_groups`."""

    bytes: Annotated[int, Field(gt=0)]
    sha256: Hash


class InPlace(_Part):
    """Where rows are that were not copied, and what a reader of their files has to know."""

    folder: str
    """The folder that all of the files are below. It is not part of the digest: the content is."""
    label: str
    """Their column of labels."""
    weight: str | None = None
    """Their column that says how much a row counts."""
    seed: int
    fractions: dict[str, float]
    """Shares of the rows that are in other splits than ``train``; see :mod:`sparkdl.data.in_place.drawing`."""


class TableVersion(_Part):
    """The table that rows were read from. It is not part of the digest: the content is."""

    format: Literal["delta", "iceberg"]
    table: str
    """Its folder, or its name in the catalog."""
    version: int
    """What Delta Lake counts its commits by, or the number of Iceberg's snapshot."""

    def __str__(self) -> str:
        return f"{self.format} {self.table}, {'version' if self.format == 'delta' else 'snapshot'} {self.version}"


class SparseCounts(_Part):
    """What the rows of a sparse split add up to."""

    values: Count
    """Features that are not zero."""
    labels: Count
    """Labels of all rows, unseen ones included."""
    unseen: Count
    """Labels that the training split does not have; their class index is -1."""
    empty: Count
    """Rows without a feature that the training split knows."""


class SplitCard(_Part):
    """The rows of one split."""

    num_rows: Annotated[Count, Field(exclude_if=lambda value: value == 0)] = 0
    num_groups: Annotated[Count, Field(exclude_if=lambda value: value == 0)] = 0
    """Row groups, each a file of its own; what they are is in a file beside the card."""
    files: Annotated[tuple[File, ...], Field(exclude_if=lambda value: not value)] = ()
    """Before format 3, the row groups themselves, in the order of the rows; sizes differ by at most one row."""
    class_counts: tuple[Count, ...]
    """Rows of each class, in the order of the label names; empty without such."""
    sparse: SparseCounts | None = None
    metadata_sha256: Annotated[Hash | None, Field(exclude_if=lambda value: value is None)] = None
    """Of the file beside them that stock Petastorm readers look at; left out by cards that were made without it."""

    @property
    def rows(self) -> int:
        """How many rows the split has."""
        return self.num_rows or sum(file.rows for file in self.files)

    @model_validator(mode="after")
    def _balanced(self) -> Self:
        if bool(self.num_rows) != bool(self.num_groups) or bool(self.files) == bool(self.num_groups):
            raise ValueError("a split has row groups, whose rows and numbers are counted, or files that are listed")
        if not self.files:
            return self
        sizes = {file.rows for file in self.files}
        if max(sizes) - min(sizes) > 1:
            raise ValueError(f"row groups must be of equal size, give or take one row; found {sorted(sizes)}")
        return self


class LabelScale(_Part):
    """The numbers that regression predicts, over the rows of the training split."""

    mean: Annotated[float, Field(allow_inf_nan=False)]
    std: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    """One where all of them are equal."""
