"""What scoring needs to know of the dataset that a model was trained on."""

from pathlib import Path
from typing import Any, Self

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from sparkdl.data.card import CARD_NAME, InputSpec
from sparkdl.data.card_parts import LabelScale, LabelsFile, LinkFunction
from sparkdl.data.label_types import LABEL_TYPE, labels_from_names
from sparkdl.data.labels import read_labels
from sparkdl.errors import DatasetError, ModelError
from sparkdl.settings.section import TaskName

__all__ = ["ModelCard"]


class ModelCard(BaseModel):
    """The part of a dataset's card that says what goes into a model and what its classes are called.

    The rest of the card (files, counts) is ignored, so that a registered model outlives changes in how datasets are
    laid out.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, serialize_by_alias=True, validate_by_name=True)

    unnamed: InputSpec | None = Field(None, alias="input")
    """The only input, which has no name."""
    inputs: dict[str, InputSpec] = {}
    """Or several, by the names of the network's arguments."""
    task: TaskName = "classification"
    label_names: tuple[str, ...]
    labels: LabelsFile | None = None
    """Where the class names are if ``label_names`` is empty: there are very many of them."""
    label_type: str | None = Field(None, pattern=f"^({LABEL_TYPE})$")
    """The Spark SQL type of a predicted label; texts in cards that were made without it."""
    label_scale: LabelScale | None = None
    """Of what regression predicts, where the network answers standardised numbers."""
    link: LinkFunction = "identity"
    """Elsewhere: what its answers are of the numbers."""
    outputs: dict[str, tuple[int, ...]] = {}
    """Outputs of the network that are columns beside predictions, with their shapes for a row: (width,), or () of a
    number."""
    raw_columns: dict[str, str]
    fields: dict[str, tuple[str, ...]] = {}
    preprocessing: bool
    settings: dict[str, Any] = {}
    """Those that the dataset was prepared with; none of models of other makes."""

    @model_validator(mode="after")
    def _has_classes(self) -> Self:
        if (self.unnamed is None) != bool(self.inputs):
            raise ValueError("it has one `input`, or `inputs` by their names")
        if self.label_scale is not None and self.task != "regression":
            raise ValueError("label_scale is of regression, and of nothing else")
        if not (self.label_names or self.labels or self.task in ("regression", "ranking", "language_modelling")):
            raise ValueError("it names no classes")
        return self

    @property
    def input(self) -> InputSpec:
        """The only input, if it has no name. Raises :class:`ModelError` where inputs have names."""
        if self.unnamed is None:
            raise ModelError(f"the model takes inputs that have names ({', '.join(self.inputs)}), and not a single one")
        return self.unnamed

    @property
    def specs(self) -> tuple[InputSpec, ...]:
        """All inputs."""
        return tuple(self.inputs.values()) or (self.input,)

    @property
    def num_classes(self) -> int:
        """How many classes there are; none where a number is predicted."""
        return self.labels.classes if self.labels else len(self.label_names)

    @property
    def input_column(self) -> str:
        """The column that holds the inputs of prepared rows: what preprocessing makes, or the only raw one."""
        return self.input.column if self.preprocessing else next(iter(self.raw_columns), self.input.column)

    def preprocessed(self) -> "ModelCard":
        """The card of the same model for rows that preprocessing is done with."""
        return self.model_copy(update={"raw_columns": {self.input.column: "vector"}, "preprocessing": False})

    @classmethod
    def load(cls, folder: str | Path) -> "ModelCard":
        """Read the card in a model's folder. Runs anywhere; raises :class:`ModelError` if there is no valid one."""
        path = Path(folder) / CARD_NAME
        try:
            return cls.model_validate_json(path.read_bytes())
        except OSError as error:
            raise ModelError(f"the model in {folder} has no readable {CARD_NAME}: {error.strerror}") from error
        except ValidationError as error:
            problem = error.errors()[0]
            key = ".".join(map(str, problem["loc"])) or "the card as a whole"
            raise ModelError(f"{path} is not a model's card: {key}: {problem['msg']}") from None

    def read_labels(self, folder: str | Path) -> pa.Array:
        """The labels by class index, in their own type.

        Runs anywhere; raises :class:`ModelError` if their file was altered, or they are not of that type.
        """
        try:
            if self.labels is None:
                return labels_from_names(self.label_names, self.label_type)
            names = read_labels(str(folder), self.labels).column("name").combine_chunks()
            return labels_from_names(names, self.label_type)
        except (DatasetError, ValueError) as error:
            raise ModelError(f"the model in {folder} is damaged: {error}") from None
