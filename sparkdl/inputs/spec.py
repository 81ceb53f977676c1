"""What one input of a network is, as the card of a dataset says it."""

import keyword
import math
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = ["NAME", "InputSpec", "is_name", "mask_name"]

NAME = r"^[A-Za-z][A-Za-z0-9_]{0,63}$"
"""What an input may be called: it is an argument of a network's ``forward`` and a column of the dataset."""
_BYTES = {"uint8": 1, "float32": 4, "int32": 4}
_KINDS = {
    ("image", "uint8", 3),
    ("vector", "float32", 1),
    ("sparse", "float32", 1),
    ("ids", "int32", 1),
    ("tokens", "int32", 1),
    ("sequence", "int32", 1),
    ("sequence", "float32", 1),
}


class InputSpec(BaseModel):
    """What a model is fed with."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    column: str
    """The column of the dataset. Raw rows have it too, unless preprocessing makes it. Of an input that has a name, the
    column that its stages end in, or the raw one of images; in files it is called by its name."""
    kind: Literal["image", "vector", "sparse", "ids", "tokens", "sequence"]
    shape: Annotated[tuple[Annotated[int, Field(gt=0)], ...], Field(min_length=1, max_length=3)]
    """(height, width, channels) of an image, (width,) of a vector or of ids, whether stored whole or ``sparse``, and
    (length of the longest row,) of ``tokens`` and of a ``sequence``."""
    dtype: Literal["uint8", "float32", "int32"]
    """As it is stored; whole numbers that name something are int64 in batches."""
    mean: tuple[float, ...] | None = None
    """Of an image: per channel, the mean of value / 255 over the training split."""
    std: tuple[float, ...] | None = None
    """Of an image: per channel, the standard deviation of value / 255 over the training split."""
    vocabulary: Annotated[int | None, Field(gt=0, exclude_if=lambda value: value is None)] = None
    """Of whole numbers: how many there are, from 0 on, and so how many rows the table of an embedding needs."""
    padding: Annotated[int, Field(ge=0, exclude_if=lambda value: value == 0)] = 0
    """Of ``tokens``: what stands behind a row's last one in a batch."""
    max_length: Annotated[int | None, Field(gt=0, exclude_if=lambda value: value is None)] = None
    """Of ``tokens`` and of a ``sequence``: no row is longer."""

    end_of_text: Annotated[int | None, Field(ge=0, exclude_if=lambda value: value is None)] = None
    """Of ``tokens`` for language modelling: the id between texts that are laid end to end. Rows are blocks of these."""

    @property
    def row_bytes(self) -> int:
        """Bytes of one row's input in memory, as an array."""
        return math.prod(self.shape) * _BYTES[self.dtype]

    @property
    def is_ragged(self) -> bool:
        """Whether rows have different lengths, so that a batch is padded."""
        return self.kind in ("tokens", "sequence")

    @model_validator(mode="after")
    def _kind_fits(self) -> Self:
        if (self.kind, self.dtype, len(self.shape)) not in _KINDS:
            raise ValueError("an image is uint8 of shape (height, width, channels), a vector float32 of shape (width,)")
        return self


def is_name(text: str) -> bool:
    """Whether a network can have an argument of this name."""
    return text.isidentifier() and not keyword.iskeyword(text)


def mask_name(name: str) -> str:
    """The argument that says which places of a padded input are a row's own; transformers' one of ``input_ids``."""
    return "attention_mask" if name == "input_ids" else f"{name}_mask"
