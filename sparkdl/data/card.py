"""The card of a prepared dataset: its description, as JSON that is validated and never executed."""

import hashlib
import json
import re
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from sparkdl.data.card_parts import (
    Hash,
    InPlace,
    LabelScale,
    LabelsFile,
    RowGroupsFile,
    SplitCard,
    TableVersion,
)
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
    "InputSpec",
]

CARD_NAME = "card.json"
PREPROCESSING = "preprocessing"
LABELS_NAME = "labels.parquet"
ROW_GROUPS_NAME = "row_groups.parquet"
DRAWN_BY = "row"
"""The rule by which rows are drawn for splits in new datasets; see :attr:`Card.split_by`."""
METADATA_NAME = "_common_metadata"
"""The file in a split's folder that stock Petastorm readers need; this package does not read it."""
UNSEEN = -1
"""The class index of a label that the training split does not have."""
LABEL_COLUMN = "label"
"""The column of labels in every prepared dataset: class indices, numbers, or a byte for each class."""
WEIGHT_COLUMN = "weight"
"""The column of rows' weights, if they have weights."""
SPLIT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
"""The names that a split may have: it is also the name of a folder."""

InputName = Annotated[str, Field(pattern=NAME)]


class Card(BaseModel):
    """Everything that is known about a dataset without reading its rows."""

    model_config = ConfigDict(extra="forbid", frozen=True, serialize_by_alias=True, validate_by_name=True)

    version: Literal[1, 2, 3, 4, 5] = 3
    """The version of the format. In 1, sparse rows were lists; in 1 and 2, the card listed all files. 4 is for rows
    that stay in place, in existing Parquet files, and 5 for named inputs."""
    unnamed: Annotated[InputSpec | None, Field(alias="input", exclude_if=lambda value: value is None)] = None
    """The single input, which has no name; see :attr:`input`."""
    inputs: Annotated[dict[InputName, InputSpec], Field(exclude_if=lambda value: not value)] = {}
    """The inputs by the names of a network's arguments; empty if there is a single, unnamed input."""
    task: Annotated[TaskName, Field(exclude_if=lambda value: value == "classification")] = "classification"
    """The task for which the labels are prepared."""
    label_names: tuple[str, ...]
    """Class names by class index, from the training split; empty if they are in a file, or labels are numbers."""
    labels: LabelsFile | None = None
    """The file of the class names, if there are very many of them."""
    row_groups: Annotated[RowGroupsFile | None, Field(exclude_if=lambda value: value is None)] = None
    """The file that lists the row groups; None in cards that list their files."""
    in_place: Annotated[InPlace | None, Field(exclude_if=lambda value: value is None)] = None
    """Where the rows are, if they stay in place in existing files."""
    table: Annotated[TableVersion | None, Field(exclude_if=lambda value: value is None)] = None
    """The table from which rows were read, if its format has versions."""
    label_type: Annotated[str | None, Field(pattern=f"^({LABEL_TYPE})$", exclude_if=lambda value: value is None)] = None
    """The Spark SQL type of class labels, or of the elements of arrays of them; None in cards of older versions."""
    label_scale: Annotated[LabelScale | None, Field(exclude_if=lambda value: value is None)] = None
    """The mean and standard deviation of numeric labels."""
    mean_weight: Annotated[float | None, Field(gt=0, allow_inf_nan=False, exclude_if=lambda value: value is None)] = (
        None
    )
    """The mean weight of the training rows; None if rows have no weights."""
    splits: Annotated[dict[str, SplitCard], Field(min_length=1)]
    raw_columns: dict[str, str]
    """The raw columns that scoring needs, with their Spark types; ``vector`` also stands for arrays."""
    fields: Annotated[dict[str, tuple[str, ...]], Field(exclude_if=lambda value: not value)] = {}
    """For raw columns that are fields of structs, or values of maps: the column and the path below it."""
    preprocessing: bool
    """Whether fitted preprocessing is stored beside the card."""
    preprocessing_sha256: Hash | None = None
    """The hash of the preprocessing's folder. It is not part of the digest, because Spark stores random names and the
    time of day there."""
    settings: dict[str, Any]
    """The settings that decided the content. Preparing the same output with other settings is refused."""
    split_by: Annotated[Literal["content", "row"], Field(exclude_if=lambda value: value == "content")] = "content"
    """How rows were drawn for splits: each ``row`` independently, or by its ``content``, as in older versions. By
    content, equal rows are in the same split, and shares are of distinct rows."""
    source: str
    """The fingerprint of the raw rows, independent of their order: their number and hashes of their content."""
    digest: Hash
    """SHA-256 of all the above except ``table``, ``preprocessing_sha256`` and the folder of rows that stay in place. It
    covers the content of all files, because their hashes are in the card or in files whose hashes are."""

    @property
    def input(self) -> InputSpec:
        """The single, unnamed input. Raises :class:`DatasetError` if inputs have names."""
        if self.unnamed is None:
            raise DatasetError(
                f"the dataset has named inputs ({', '.join(self.inputs)}), but this needs a dataset with a single,"
                " unnamed input: prepare it with `features` or `image` instead of `inputs`"
            )
        return self.unnamed

    @property
    def num_classes(self) -> int:
        """The number of classes in the training split; 0 if labels are numbers."""
        return self.labels.classes if self.labels else len(self.label_names)

    @property
    def label(self) -> LabelSpec:
        """How labels are stored, unless their names are in a file."""
        return LabelSpec.of(self.task, self.num_classes)

    @property
    def in_lists(self) -> bool:
        """Whether files store rows as lists of different lengths: the nonzero values, or all rows of a group."""
        return self.is_sparse or self.task == "ranking"

    @property
    def is_sparse(self) -> bool:
        """Whether the single input is sparse: only nonzero values are stored."""
        return self.unnamed is not None and self.unnamed.kind == "sparse"

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        sparse = self.is_sparse
        if (self.unnamed is None) != bool(self.inputs) or bool(self.inputs) != (self.version == 5):
            raise ValueError("a card must have either one `input`, or in format 5 `inputs` by name")
        if sparse and self.version == 1:
            raise ValueError("its sparse rows are lists, which this version of sparkdl no longer reads")
        classless = self.task in ("regression", "ranking", "language_modelling")
        if (self.label_scale is not None) != (self.task == "regression"):
            raise ValueError("label_scale is only for regression, and needed there")
        if bool(self.label_names) + bool(self.labels) != (not classless) or (self.labels and not sparse):
            raise ValueError("label_names must be in the card, or, if rows are sparse, in a separate file")
        if (self.row_groups is not None) != (self.version >= 3):
            raise ValueError("row_groups is only for formats from 3 on, and needed there")
        if (self.in_place is not None) != (self.version == 4):
            raise ValueError("in_place is only for format 4, and needed there")
        for name, split in self.splits.items():
            if bool(split.files) == (self.row_groups is not None):
                raise ValueError(f"split {name!r} does not list its row groups as its format requires")
            if not SPLIT_NAME.fullmatch(name) or name == PREPROCESSING:
                raise ValueError(f"{name!r} is not a valid name of a split")
            if (split.sparse is not None) != self.in_lists:
                raise ValueError(f"the counts of split {name!r} do not fit the way its rows are stored")
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
        """Parse and validate a card. Runs anywhere. Raises :class:`DatasetError` with ``origin`` and the key."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            problem = error.errors()[0]
            key = ".".join(map(str, problem["loc"])) or "the card as a whole"
            if key == "version":
                raise DatasetError(
                    f"{origin} has format {problem['input']!r}, which this version of sparkdl does not know: use the "
                    "version that wrote it, or a newer one"
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
