"""A stage that turns dates and times into parts of the calendar, such as month or weekday."""

from dataclasses import dataclass
from datetime import date
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from typing_extensions import override

from sparkdl.errors import DataError
from sparkdl.preprocessing.saved import SavedStage
from sparkdl.preprocessing.stage import FittedStage
from sparkdl.preprocessing.values import Column, find

__all__ = ["CalendarParts"]

_DAY = 24 * 60 * 60
"""Seconds of a day, without leap seconds."""
_SECOND = 1_000_000
"""Microseconds of a second."""


@dataclass(frozen=True)
class CalendarParts(FittedStage):
    """``sparkdl.data.dates.DateParts``: a number for each part of a date or time; null stays null.

    The calendar is Gregorian, with weeks of ISO 8601. Times are in UTC; times without a zone are taken as they are.
    """

    input: str
    outputs: tuple[str, ...]
    parts: tuple[str, ...]
    since: int
    """The day from which ages are counted, in days since 1970."""

    @classmethod
    @override
    def read(cls, saved: SavedStage) -> Self:
        parts, outputs = saved.parameter("parts", list), saved.outputs
        if len(parts) != len(outputs) or not all(part in _PARTS for part in parts):
            raise saved.damaged(f"its parts are {parts!r}")
        try:
            since = date.fromisoformat(saved.parameter("since", str))
        except ValueError as error:
            raise saved.damaged(f"its ages count from no day: {error}") from None
        return cls(saved.input, outputs, tuple(parts), (since - date(1970, 1, 1)).days)

    @override
    def transform(self, columns: dict[str, Column]) -> dict[str, Column]:
        column = find(columns, self.input)
        if not isinstance(column, pa.Array) or not (
            pa.types.is_date32(column.type) or pa.types.is_timestamp(column.type)
        ):
            raise DataError(f"the column {self.input!r} holds no dates or times")
        missing = np.asarray(column.is_null())
        days, seconds = _days_and_seconds(column)
        made: dict[str, Column] = {}
        for part, output in zip(self.parts, self.outputs, strict=True):
            values = (days - self.since) + seconds / _DAY if part == "age" else _PARTS[part](days, seconds)
            made[output] = pa.array(values.astype(np.float64), mask=missing)
        return made


Whole = NDArray[np.int64]


def _days_and_seconds(column: pa.Array) -> tuple[Whole, Whole]:
    """Whole days since 1970, and whole seconds since midnight; both are 0 for null."""
    kind = pa.int32() if pa.types.is_date32(column.type) else pa.int64()
    whole: Whole = pc.fill_null(column.cast(kind), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    if pa.types.is_date32(column.type):
        return whole, np.zeros_like(whole)
    days, seconds = np.divmod(whole // _SECOND, _DAY)
    return days, seconds


def _since(days: Whole, unit: str) -> Whole:
    """Whole years or months since 1970."""
    return days.astype("datetime64[D]").astype(f"datetime64[{unit}]").astype(np.int64)


def _first(days: Whole, unit: str) -> Whole:
    """The first day of the year or month of each day."""
    return _since(days, unit).astype(f"datetime64[{unit}]").astype("datetime64[D]").astype(np.int64)


def _weekday(days: Whole) -> Whole:
    return (days + 3) % 7 + 1  # the first day of 1970 was a Thursday


def _week(days: Whole) -> Whole:
    """The number of the week in its year, which is the year of the week's Thursday."""
    thursday = days - _weekday(days) + 4
    return (thursday - _first(thursday, "Y")) // 7 + 1


_PARTS: dict[str, Any] = {
    "year": lambda days, _: _since(days, "Y") + 1970,
    "quarter": lambda days, _: _since(days, "M") % 12 // 3 + 1,
    "month": lambda days, _: _since(days, "M") % 12 + 1,
    "week": lambda days, _: _week(days),
    "day": lambda days, _: days - _first(days, "M") + 1,
    "day_of_week": lambda days, _: _weekday(days),
    "day_of_year": lambda days, _: days - _first(days, "Y") + 1,
    "hour": lambda _, seconds: seconds // 3600,
    "minute": lambda _, seconds: seconds // 60 % 60,
    "second": lambda _, seconds: seconds % 60,
    "age": None,
}
"""How each part is computed from days since 1970, seconds since midnight, and the day from which ages are counted."""
