"""The card of a prepared dataset: what is in it, as JSON that is validated and never executed."""

import hashlib
import json
import re
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from sparkdl.data.label_spec import LabelSpec
from sparkdl.data.label_types import LABEL_TYPE
from sparkdl.errors import DatasetError
from sparkdl.inputs.spec import NAME, InputSpec
from sparkdl.settings.section import TaskName

__all__ = [
    "CARD_NAME",
    "DRAWN_BY",
    "LABELS_NAME",
    "LABEL_COLUMN",
    "METADATA_NAME",
    "PREPROCESSING",
    "ROW_GROUPS_NAME",
    "SPLIT_NAME",
    "UNSEEN",
    "WEIGHT_COLUMN",
    "Card",
    "File",
    "InPlace",
    "InputSpec",
    "LabelScale",
    "LabelsFile",
    "LinkFunction",
    "RowGroupsFile",
    "SparseCounts",
    "SplitCard",
    "TableVersion",
]

CARD_NAME = "card.json"
PREPROCESSING = "preprocessing"
LABELS_NAME = "labels.parquet"
ROW_GROUPS_NAME = "row_groups.parquet"
DRAWN_BY = "row"
"""The rule by which rows are drawn for splits today; see :attr:`Card.split_by`."""
METADATA_NAME = "_common_metadata"
"""The file in a split's folder that stock Petastorm readers look at, and nothing in this package."""
UNSEEN = -1
"""The class index of a label that the training split does not have."""
LABEL_COLUMN = "label"
"""The column of labels in every prepared dataset: class indices, numbers, or a byte for each class."""
WEIGHT_COLUMN = "weight"
"""The column that says how much a row counts, where rows do not count alike."""
SPLIT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
"""What a split may be called: its name is also the name of a folder."""

Count = Annotated[int, Field(ge=0)]
LinkFunction = Literal["identity", "log"]
"""What the network of a regression answers of the number, or with ``log`` its logarithm."""
Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
InputName = Annotated[str, Field(pattern=NAME)]


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
    """Where in the file the labels begin, one after another as :class:`LabelSpec` says; zero where rows are sparse."""
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


class Card(_Part):
    """Everything that is known about a dataset without reading its rows."""

    model_config = ConfigDict(extra="forbid", frozen=True, serialize_by_alias=True, validate_by_name=True)

    version: Literal[1, 2, 3, 4, 5] = 3
    """Of the format: in the first one, sparse rows were lists; in the first two, the card listed all files. The fourth
    is for rows that are in the files of others, the fifth for inputs that have names."""
    unnamed: Annotated[InputSpec | None, Field(alias="input", exclude_if=lambda value: value is None)] = None
    """The only input, which has no name; see :attr:`input`."""
    inputs: Annotated[dict[InputName, InputSpec], Field(exclude_if=lambda value: not value)] = {}
    """The inputs by the names of a network's arguments; empty where there is one that has no name."""
    task: Annotated[TaskName, Field(exclude_if=lambda value: value == "classification")] = "classification"
    """What the labels are for."""
    label_names: tuple[str, ...]
    """Class names by class index, from the training split; empty if they are in a file, or labels are numbers."""
    labels: LabelsFile | None = None
    """Where the class names are, if there are very many of them."""
    row_groups: Annotated[RowGroupsFile | None, Field(exclude_if=lambda value: value is None)] = None
    """Where the row groups are; None in cards that list their files."""
    in_place: Annotated[InPlace | None, Field(exclude_if=lambda value: value is None)] = None
    """Where the rows are, if they are not in files of the dataset."""
    table: Annotated[TableVersion | None, Field(exclude_if=lambda value: value is None)] = None
    """The table that rows were read from, if its format has versions."""
    label_type: Annotated[str | None, Field(pattern=f"^({LABEL_TYPE})$", exclude_if=lambda value: value is None)] = None
    """The Spark SQL type of labels of classes, or of those in an array; None in cards that were made without it."""
    label_scale: Annotated[LabelScale | None, Field(exclude_if=lambda value: value is None)] = None
    """Of labels that are numbers."""
    mean_weight: Annotated[float | None, Field(gt=0, allow_inf_nan=False, exclude_if=lambda value: value is None)] = (
        None
    )
    """Of the rows of the training split; None where all rows count alike."""
    splits: Annotated[dict[str, SplitCard], Field(min_length=1)]
    raw_columns: dict[str, str]
    """The raw columns that scoring needs, with their Spark types; ``vector`` also stands for arrays."""
    fields: Annotated[dict[str, tuple[str, ...]], Field(exclude_if=lambda value: not value)] = {}
    """Of raw columns that are fields of structs, or values of maps: the way to them, from the column on."""
    preprocessing: bool
    """Whether a fitted ``pyspark.ml`` pipeline is kept beside the card."""
    preprocessing_sha256: Hash | None = None
    """Of the pipeline's folder; not part of the digest, for Spark saves random names and the time of day with it."""
    settings: dict[str, Any]
    """The settings that decided the content; preparing again with others is refused."""
    split_by: Annotated[Literal["content", "row"], Field(exclude_if=lambda value: value == "content")] = "content"
    """What rows were drawn by for splits: each ``row`` by itself, or by its ``content`` alone, as all were before, so
    that equal rows are in one split and shares are of rows that differ."""
    source: str
    """Fingerprint of the raw rows, independent of their order: count and hashes of the content."""
    digest: Hash
    """SHA-256 of all the above but ``table``, ``preprocessing_sha256`` and the folder of rows that are in place; the
    files' own hashes are there, or in what is hashed."""

    @property
    def input(self) -> InputSpec:
        """What a model is fed with, if that has no name. Raises :class:`DatasetError` where inputs have names."""
        if self.unnamed is None:
            raise DatasetError(
                f"the dataset has inputs that have names ({', '.join(self.inputs)}), and this needs a dataset with"
                " one unnamed input: prepare it with `features` or `image` in place of `inputs`"
            )
        return self.unnamed

    @property
    def num_classes(self) -> int:
        """How many classes the training split has; none where labels are numbers."""
        return self.labels.classes if self.labels else len(self.label_names)

    @property
    def label(self) -> LabelSpec:
        """How labels are stored, unless their names are in a file."""
        return LabelSpec.of(self.task, self.num_classes)

    @property
    def in_lists(self) -> bool:
        """Whether rows lie in files as lists of different lengths: what is not zero, or all rows of a group."""
        return self.is_sparse or self.task == "ranking"

    @property
    def is_sparse(self) -> bool:
        """Whether the only input keeps what is not zero."""
        return self.unnamed is not None and self.unnamed.kind == "sparse"

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        sparse = self.is_sparse
        if (self.unnamed is None) != bool(self.inputs) or bool(self.inputs) != (self.version == 5):
            raise ValueError("a card has one `input`, or in format 5 `inputs` by their names")
        if sparse and self.version == 1:
            raise ValueError("its sparse rows are lists, as sparkdl no longer reads them")
        classless = self.task in ("regression", "ranking", "language_modelling")
        if (self.label_scale is not None) != (self.task == "regression"):
            raise ValueError("label_scale is of the numbers of regression, and of nothing else")
        if bool(self.label_names) + bool(self.labels) != (not classless) or (self.labels and not sparse):
            raise ValueError("label_names must be in the card, or in a file of their own where rows are sparse")
        if (self.row_groups is not None) != (self.version >= 3):
            raise ValueError("row_groups is of the formats from 3 on, and of no other")
        if (self.in_place is not None) != (self.version == 4):
            raise ValueError("in_place is of the format 4, and of no other")
        for name, split in self.splits.items():
            if bool(split.files) == (self.row_groups is not None):
                raise ValueError(f"split {name!r} does not keep its row groups where its format does")
            if not SPLIT_NAME.fullmatch(name) or name == PREPROCESSING:
                raise ValueError(f"{name!r} is not a name for a split")
            if (split.sparse is not None) != self.in_lists:
                raise ValueError(f"split {name!r} is not counted the way its rows are stored")
            if len(split.class_counts) != len(self.label_names):
                raise ValueError(f"split {name!r} counts {len(split.class_counts)} classes of {len(self.label_names)}")
            if self.label_names and self.task == "classification" and sum(split.class_counts) != split.rows:
                counted = sum(split.class_counts)
                raise ValueError(f"class counts of split {name!r} add up to {counted}, its files to {split.rows} rows")
            if any(not file.path.startswith(f"{name}/") for file in split.files):
                raise ValueError(f"split {name!r} lists files of another folder")
        if self.digest != _digest(self.model_dump(mode="json")):
            raise ValueError("the digest does not match the content; the card was altered")
        return self

    @classmethod
    def create(cls, **content: Any) -> Self:
        """A card with its digest computed."""
        unsigned = cls.model_construct(**content, digest="")
        return cls(**content, digest=_digest(unsigned.model_dump(mode="json")))

    @classmethod
    def from_json(cls, text: str | bytes, *, origin: str = "the card") -> Self:
        """Validate a card's text. Runs anywhere; raises :class:`DatasetError` that names ``origin`` and the key."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            problem = error.errors()[0]
            key = ".".join(map(str, problem["loc"])) or "the card as a whole"
            if key == "version":
                raise DatasetError(
                    f"{origin} is of the format {problem['input']!r}, which this version of sparkdl does not know: use "
                    "the version that wrote it, or a newer one"
                ) from None
            raise DatasetError(
                f"{origin} is not a valid dataset card: {key}: {problem['msg'].removeprefix('Value error, ')}. "
                "Prepare the dataset again with this version of sparkdl."
            ) from None

    def to_json(self) -> str:
        """The card as indented JSON."""
        return self.model_dump_json(indent=1)


def _digest(tree: dict[str, Any]) -> str:
    content = {key: value for key, value in tree.items() if key not in ("digest", "table", "preprocessing_sha256")}
    if in_place := content.get("in_place"):
        content["in_place"] = {key: value for key, value in in_place.items() if key != "folder"}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
