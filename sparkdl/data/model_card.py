"""The part of a dataset's card that is stored with a model, for scoring."""

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
    """The part of a dataset's card that describes the inputs of a model and its classes.

    The rest of the card (files, counts) is ignored, so that a registered model does not depend on the format of
    datasets.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, serialize_by_alias=True, validate_by_name=True)

    unnamed: InputSpec | None = Field(None, alias="input")
    """The single input, which has no name."""
    inputs: dict[str, InputSpec] = {}
    """Named inputs, by the names of the network's arguments."""
    task: TaskName = "classification"
    label_names: tuple[str, ...]
    labels: LabelsFile | None = None
    """The file of the class names, if there are very many of them; ``label_names`` is empty then."""
    label_type: str | None = Field(None, pattern=f"^({LABEL_TYPE})$")
    """The Spark SQL type of a predicted label; None, for texts, in cards of older versions."""
    label_scale: LabelScale | None = None
    """For regression: the scale of labels, if the network predicts standardised numbers."""
    link: LinkFunction = "identity"
    """For regression without a scale: whether the network predicts the numbers or their logarithms."""
    outputs: dict[str, tuple[int, ...]] = {}
    """Outputs of the network that become columns beside predictions, with their shapes per row: (width,), or () for a
    number."""
    raw_columns: dict[str, str]
    fields: dict[str, tuple[str, ...]] = {}
    preprocessing: bool
    settings: dict[str, Any] = {}
    """The settings with which the dataset was prepared; empty for models that were not trained by sparkdl."""

    @model_validator(mode="after")
    def _has_classes(self) -> Self:
        if (self.unnamed is None) != bool(self.inputs):
            raise ValueError("it must have either one `input`, or `inputs` by name")
        if self.label_scale is not None and self.task != "regression":
            raise ValueError("label_scale is only for regression")
        if not (self.label_names or self.labels or self.task in ("regression", "ranking", "language_modelling")):
            raise ValueError("it has no class names")
        return self

    @property
    def input(self) -> InputSpec:
        """The single, unnamed input. Raises :class:`ModelError` if inputs have names."""
        if self.unnamed is None:
            raise ModelError(f"the model takes named inputs ({', '.join(self.inputs)}), not a single unnamed one")
        return self.unnamed

    @property
    def specs(self) -> tuple[InputSpec, ...]:
        """All inputs."""
        return tuple(self.inputs.values()) or (self.input,)

    @property
    def num_classes(self) -> int:
        """The number of classes; 0 for regression and ranking."""
        return self.labels.classes if self.labels else len(self.label_names)

    @property
    def input_column(self) -> str:
        """The column of the inputs: the result of preprocessing, or the only raw column."""
        return self.input.column if self.preprocessing else next(iter(self.raw_columns), self.input.column)

    def preprocessed(self) -> "ModelCard":
        """The card of the same model for rows that are already preprocessed."""
        return self.model_copy(update={"raw_columns": {self.input.column: "vector"}, "preprocessing": False})

    @classmethod
    def load(cls, folder: str | Path) -> "ModelCard":
        """Read the card in a model's folder. Runs anywhere. Raises :class:`ModelError` if there is no valid card."""
        path = Path(folder) / CARD_NAME
        try:
            return cls.model_validate_json(path.read_bytes())
        except OSError as error:
            raise ModelError(f"the model in {folder} has no readable {CARD_NAME}: {error.strerror}") from error
        except ValidationError as error:
            problem = error.errors()[0]
            key = ".".join(map(str, problem["loc"])) or "the card as a whole"
            raise ModelError(f"{path} is not a valid model card: {key}: {problem['msg']}") from None

    def read_labels(self, folder: str | Path) -> pa.Array:
        """The labels by class index, in their own type.

        Runs anywhere. Raises :class:`ModelError` if their file was altered, or they are not of that type.
        """
        try:
            if self.labels is None:
                return labels_from_names(self.label_names, self.label_type)
            names = read_labels(str(folder), self.labels).column("name").combine_chunks()
            return labels_from_names(names, self.label_type)
        except (DatasetError, ValueError) as error:
            raise ModelError(f"the model in {folder} is damaged: {error}") from None
