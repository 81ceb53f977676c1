"""What scoring needs to know of the dataset that a model was trained on."""

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sparkdl.data.card import CARD_NAME, InputSpec
from sparkdl.errors import ModelError

__all__ = ["ModelCard"]


class ModelCard(BaseModel):
    """The part of a dataset's card that says what goes into a model and what its classes are called.

    The rest of the card (files, counts) is ignored, so that a registered model outlives changes in how datasets are
    laid out.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    input: InputSpec
    label_names: Annotated[tuple[str, ...], Field(min_length=1)]
    raw_columns: dict[str, str]
    preprocessing: bool

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
