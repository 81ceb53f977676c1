"""The format of labels in files and batches, by task."""

import math
from typing import Literal, NamedTuple, Self

from sparkdl.settings.section import TaskName

__all__ = ["LabelSpec"]


class LabelSpec(NamedTuple):
    """The format of labels in files and batches."""

    dtype: Literal["int64", "float64", "uint8"]
    """int64 for a class index, float64 for a number, uint8 for ones and zeros, one per class."""
    shape: tuple[int, ...] = ()
    """The shape per row: (classes,) for several labels per row."""
    stored: bool = True
    """Whether files contain labels: for language modelling, the inputs are the labels."""

    @classmethod
    def of(cls, task: TaskName, num_classes: int) -> Self:
        """The format of a task's labels."""
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
        """The bytes in front of each row: Parquet's PLAIN encoding of binary values begins with their length."""
        return 4 if self.shape else 0

    @property
    def row_bytes(self) -> int:
        """The bytes of one row's label."""
        return math.prod(self.shape) if self.shape else 8
