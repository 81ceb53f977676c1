"""What a stage is."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Self

from pydantic import ConfigDict
from typing_extensions import override

from sparkdl.preprocessing.saved import SavedStage
from sparkdl.preprocessing.values import Column

__all__ = ["FittedStage", "UnfittedStage", "names_in"]


class FittedStage(ABC):
    """One step of preprocessing: plain values that were fitted, and what they do to rows. Runs anywhere."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    @classmethod
    def read(cls, saved: SavedStage) -> Self:
        """The stage that Spark has saved; by default Spark has none of this kind.

        Raises :class:`~sparkdl.errors.ModelError` for damaged files, and
        :class:`~sparkdl.errors.OnlySparkError` for parameters that Spark alone knows.
        """
        raise saved.only_spark()

    @abstractmethod
    def transform(self, columns: dict[str, Column]) -> dict[str, Column]:
        """The columns that it adds for some rows.

        Raises :class:`~sparkdl.errors.DataError` for rows that it does not take, with the column and their count.
        """

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns that it reads."""
        return names_in(self, "input")

    @property
    def writes(self) -> tuple[str, ...]:
        """The columns that it adds."""
        return names_in(self, "output")

    @property
    def needs(self) -> dict[str, int | None]:
        """Columns in which every row must have a value, and how wide it must be where it is a vector."""
        return {}


@dataclass(frozen=True)
class UnfittedStage(FittedStage):
    """A stage to which rows have nothing to say: one column becomes another."""

    input: str
    output: str

    @classmethod
    @override
    def read(cls, saved: SavedStage) -> Self:
        return cls(saved.input, saved.output)


def names_in(stage: object, key: str) -> tuple[str, ...]:
    """What a stage has in a field of this name, or in one with an s behind it."""
    names: tuple[str, ...] = getattr(stage, f"{key}s", None) or (getattr(stage, key),)
    return names
