"""The base classes of stages."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Self

from pydantic import ConfigDict
from typing_extensions import override

from sparkdl.preprocessing.saved import SavedStage
from sparkdl.preprocessing.values import Column

__all__ = ["FittedStage", "UnfittedStage", "names_in"]


class FittedStage(ABC):
    """One step of preprocessing: fitted values, and the transformation of columns with them. Runs anywhere."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    @classmethod
    def read(cls, saved: SavedStage) -> Self:
        """The stage from a stage that Spark saved.

        Raises :class:`~sparkdl.errors.ModelError` for damaged files, and :class:`~sparkdl.errors.OnlySparkError` for
        parameters that only Spark supports, or if Spark has no stage of this kind (the default).
        """
        raise saved.only_spark()

    @abstractmethod
    def transform(self, columns: dict[str, Column]) -> dict[str, Column]:
        """The columns that the stage adds, for some rows.

        Raises :class:`~sparkdl.errors.DataError` for rows that the stage rejects, with the column and their count.
        """

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns that the stage reads."""
        return names_in(self, "input")

    @property
    def writes(self) -> tuple[str, ...]:
        """The columns that the stage adds."""
        return names_in(self, "output")

    @property
    def needs(self) -> dict[str, int | None]:
        """Columns that must have a value in every row; the width of vectors, and None for other columns."""
        return {}


@dataclass(frozen=True)
class UnfittedStage(FittedStage):
    """A stage that needs no fitting, and makes one column from another."""

    input: str
    output: str

    @classmethod
    @override
    def read(cls, saved: SavedStage) -> Self:
        return cls(saved.input, saved.output)


def names_in(stage: object, key: str) -> tuple[str, ...]:
    """The column names in a stage's field ``key``, or in the field with an s at its end."""
    names: tuple[str, ...] = getattr(stage, f"{key}s", None) or (getattr(stage, key),)
    return names
