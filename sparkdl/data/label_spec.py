"""How labels lie in a file and in a batch, by what they are for."""

import math
from typing import Literal, NamedTuple, Self

from sparkdl.settings.section import TaskName

__all__ = ["LabelSpec"]


class LabelSpec(NamedTuple):
    """How labels lie in a file and in a batch."""

    dtype: Literal["int64", "float64", "uint8"]
    """A class index, a number, or ones and zeros for a row's classes."""
    shape: tuple[int, ...] = ()
    """Of one row: (classes,) where it has several labels."""
    stored: bool = True
    """Whether files have them: where the next token is predicted, the inputs are the labels."""

    @classmethod
    def of(cls, task: TaskName, num_classes: int) -> Self:
        """How the labels of a task are stored."""
        match task:
            case "multi_label":
                return cls("uint8", (num_classes,))
            case "regression" | "ranking":
                return cls("float64")
            case "language_modelling":
                return cls("int64", stored=False)
            case _:
                return cls("int64")

    @property
    def length_bytes(self) -> int:
        """Bytes in front of each row: Parquet's PLAIN encoding of binary values starts them with their length."""
        return 4 if self.shape else 0

    @property
    def row_bytes(self) -> int:
        """Bytes of one row's label."""
        return math.prod(self.shape) if self.shape else 8
