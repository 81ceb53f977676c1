"""Parts of dates without Spark, beside Python's own calendar."""

from datetime import UTC, date, datetime, timedelta

import pyarrow as pa
import pytest

from sparkdl.errors import DataError
from sparkdl.preprocessing.calendar_parts import CalendarParts

PARTS = ("year", "quarter", "month", "week", "day", "day_of_week", "day_of_year", "hour", "minute", "second", "age")
MOMENTS = [datetime(1899, 12, 31, 23, 59, 58) + timedelta(days=97 * n, seconds=3671 * n) for n in range(800)]


def parts_of(column: pa.Array) -> list[list[float]]:
    stage = CalendarParts("when", PARTS, PARTS, (date(2020, 1, 1) - date(1970, 1, 1)).days)
    made = stage.transform({"when": column})
    return [list(row) for row in zip(*[made[part].to_pylist() for part in PARTS], strict=True)]


def by_python(when: datetime) -> list[float]:
    _, week, weekday = when.isocalendar()
    calendar = [when.year, (when.month + 2) // 3, when.month, week, when.day, weekday, when.timetuple().tm_yday]
    return [*calendar, when.hour, when.minute, when.second, (when - datetime(2020, 1, 1)) / timedelta(days=1)]


def test_times_with_and_without_a_zone_and_dates_have_the_parts_of_python_s_calendar() -> None:
    expected = [pytest.approx(by_python(when), abs=1e-9) for when in MOMENTS]
    assert parts_of(pa.array(MOMENTS, pa.timestamp("us"))) == expected
    assert parts_of(pa.array([when.replace(tzinfo=UTC) for when in MOMENTS], pa.timestamp("us", "UTC"))) == expected
    midnights = [when.replace(hour=0, minute=0, second=0) for when in MOMENTS]
    assert parts_of(pa.array([when.date() for when in MOMENTS])) == list(map(by_python, midnights))


def test_no_date_has_no_parts_and_a_text_is_refused() -> None:
    assert parts_of(pa.array([None], pa.date32())) == [[None] * len(PARTS)]
    with pytest.raises(DataError, match="the column 'when' holds no dates or times"):
        parts_of(pa.array(["2024-01-01"]))
