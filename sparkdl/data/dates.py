"""Dates and times become numbers: the parts of the calendar, and how long ago something was."""

from datetime import date
from typing import Any

from pyspark import keyword_only
from pyspark.ml import Transformer
from pyspark.ml.param import Param, Params, TypeConverters
from pyspark.ml.param.shared import HasInputCol, HasOutputCols
from pyspark.ml.util import DefaultParamsReadable, DefaultParamsWritable
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import DataType, DateType, TimestampType

from sparkdl.data.sql import identifier

__all__ = ["DateParts"]

_DAY = 24 * 60 * 60
"""Seconds of a day of UTC, as Spark and POSIX count them: without leap seconds."""
_EPOCH = date(1970, 1, 1)


class DateParts(Transformer, HasInputCol, HasOutputCols, DefaultParamsReadable[Any], DefaultParamsWritable):
    """Each ``part`` of a date or a time as a double in an output column; null where it is null.

    The calendar is the Gregorian one, weeks and their days are those of ISO 8601 (Monday is 1), and ``age`` is in days
    since ``since``. A ``timestamp`` is taken in UTC, whatever the zones of session and machine; one without a zone
    (``timestamp_ntz``) is taken as it stands. Runs on the driver; the work is Spark's, without Python.
    """

    parts: Param[Any] = Param(Params._dummy(), "parts", "what is made", TypeConverters.toListString)
    since: Param[str] = Param(Params._dummy(), "since", "the date that ages count from", TypeConverters.toString)

    @keyword_only
    def __init__(
        self,
        *,
        inputCol: str | None = None,  # noqa: N803
        outputCols: list[str] | None = None,  # noqa: N803
        parts: list[str] | None = None,
        since: str | None = None,
    ) -> None:
        super().__init__()
        self._set(**self._input_kwargs)  # type: ignore[attr-defined]

    def _transform(self, dataset: DataFrame) -> DataFrame:
        name = self.getInputCol()
        days, seconds = _days_and_seconds(sf.col(identifier(name)), dataset.schema[name].dataType)
        day = sf.date_from_unix_date(days)
        before = (date.fromisoformat(self.getOrDefault(self.since)) - _EPOCH).days
        made = {
            "year": sf.year(day),
            "quarter": sf.quarter(day),
            "month": sf.month(day),
            "week": sf.weekofyear(day),
            "day": sf.dayofmonth(day),
            "day_of_week": sf.weekday(day) + 1,
            "day_of_year": sf.dayofyear(day),
            "hour": sf.floor(seconds / 3600),
            "minute": sf.floor(seconds / 60) % 60,
            "second": seconds % 60,
            "age": (days - before) + seconds / _DAY,
        }
        columns = zip(self.getOutputCols(), self.getOrDefault(self.parts), strict=True)
        return dataset.select("*", *[made[part].cast("double").alias(column) for column, part in columns])


def _days_and_seconds(value: Column, kind: DataType) -> tuple[Column, Column]:
    """Whole days since 1970, and whole seconds since midnight: Spark's own functions would ask for the session's zone.

    Those of a ``timestamp_ntz`` do not.
    """
    if isinstance(kind, DateType):
        return sf.unix_date(value), sf.when(value.isNotNull(), sf.lit(0))
    if isinstance(kind, TimestampType):
        seconds = sf.unix_seconds(value)
        of_day = sf.pmod(seconds, sf.lit(_DAY))
        return ((seconds - of_day) / _DAY).cast("int"), of_day
    return sf.unix_date(value.cast("date")), sf.hour(value) * 3600 + sf.minute(value) * 60 + sf.second(value)
