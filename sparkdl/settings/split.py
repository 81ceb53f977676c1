"""The section ``prepare.split``: which rows are for training, validation and testing."""

import math
import re
from datetime import date, datetime
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from sparkdl.settings.section import Fraction, Section

__all__ = ["Split", "TimeSplit"]


def _moment(value: Any) -> Any:
    """A time as a number, or as a text of ISO 8601: YAML reads ``2024-03-01`` as a date."""
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, str):
        try:
            if not re.match(r"\d{4}-\d\d-\d\d", value):
                raise ValueError
            datetime.fromisoformat(value)
        except ValueError:
            raise ValueError("this must be a date or a time as ISO 8601 writes it, or a number") from None
        return value
    if isinstance(value, bool) or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError("this must be a date or a time as ISO 8601 writes it, or a number")
    return value


Moment = Annotated[str | int | float, BeforeValidator(_moment)]


class TimeSplit(Section):
    """A split by time: a model is tried on what came after its training rows."""

    column: str
    """Dates, timestamps, numbers, or texts that write dates or times as ISO 8601 does. A row without a time cannot be
    used."""
    test_from: Moment
    """The rows of this time and later ones are for testing. A number where the column has numbers, and else a date or
    a time. One without an offset from UTC, here or in a text, is of the session's time zone
    (``spark.sql.session.timeZone``), so write ``2024-03-01T00:00+00:00`` where sessions differ."""
    validation_from: Moment | None = None
    """The rows from this time on, until ``test_from``, are for validation."""

    @model_validator(mode="after")
    def _validation_comes_before(self) -> Self:
        first, then = (
            datetime.fromisoformat(value) if isinstance(value, str) else value
            for value in (self.test_from if self.validation_from is None else self.validation_from, self.test_from)
        )
        try:
            in_order = self.validation_from is None or first < then  # type: ignore[operator]
        except TypeError:
            raise ValueError(
                "`validation_from` and `test_from` are of two kinds: write both with an offset from UTC, or without, or"
                " as numbers"
            ) from None
        if not in_order:
            raise ValueError("`validation_from` must be before `test_from`")
        return self


class Split(Section):
    """Which rows are for training, validation and testing. Every row starts in ``train``."""

    column: str | None = None
    """A raw column that names each row's split; its values become the names of the splits."""
    time: TimeSplit | None = None
    """Splits by time: ``{column: day, test_from: 2024-03-01}``."""
    fractions: dict[str, Fraction] = Field(
        default_factory=lambda chosen: (
            {} if chosen.get("column") or chosen.get("time") else {"validation": 0.1, "test": 0.1}
        )
    )
    """Shares of the training rows that move to other splits, by default a tenth for ``validation`` and for ``test``,
    and none when there is a ``column`` or a ``time``. Each row is drawn independently, even if others are equal to it,
    by a hash of the row, of its number among equal rows, and of the seed."""
    stratify: bool = False
    """Whether each class is split separately, so that each split has its share of every class, give or take one row:
    for rare classes."""
    group: list[str] = []
    """The columns whose values, such as a customer, a patient or a session, must not occur in two splits: all rows with
    the same values are drawn together, and shares are of groups. A row without a value cannot be used."""

    @property
    def columns(self) -> list[str]:
        """The columns that are named here."""
        named = self.column, self.time.column if self.time else None, *self.group
        return [column for column in named if column]

    @property
    def names(self) -> list[str]:
        """The splits that are asked for, ``train`` first; a ``column`` may name others."""
        by_time = [] if self.time is None else ["test", *(["validation"] if self.time.validation_from else [])]
        return ["train", *self.fractions, *by_time]

    @model_validator(mode="after")
    def _leave_training_rows(self) -> Self:
        if "train" in self.fractions:
            raise ValueError("`train` is not among the fractions: it has the rows that are left")
        if sum(self.fractions.values()) >= 1:
            raise ValueError(
                f"the fractions add up to {sum(self.fractions.values()):g}; they must leave rows for training"
            )
        return self

    @model_validator(mode="after")
    def _belong_together(self) -> Self:
        if self.column and self.time:
            raise ValueError("set either `column` or `time`, not both: each decides which rows are for testing")
        if len(set(self.names)) < len(self.names):
            raise ValueError("`fractions` names a split that `time` makes")
        if self.stratify and self.group:
            raise ValueError("give either `stratify` or `group`: rows that stay together cannot be drawn one by one")
        for key in ("stratify", "group"):
            if getattr(self, key) and not self.fractions:
                raise ValueError(f"`{key}` is about how `fractions` are drawn; set `fractions`, too")
        if len(set(self.group)) < len(self.group):
            raise ValueError("`group` names a column twice")
        return self
