"""The raw rows of one split, for whoever wants to score or look at what a model was not trained on."""

import re
from typing import TYPE_CHECKING

from sparkdl.data.bad_rows import PROBLEM, what_is_wrong
from sparkdl.data.card import CARD_NAME, DRAWN_BY, Card
from sparkdl.data.preparing.decoding import decoded, with_files
from sparkdl.data.preparing.draw import (
    check_strata,
    draws_rows,
    find_strata,
    with_hashes,
    with_numbers,
    with_split,
    with_strata,
)
from sparkdl.data.preparing.features import InputPlan, raw_rows
from sparkdl.data.preparing.label_column import LABEL, WEIGHT, find_task, working_label, working_weight
from sparkdl.data.preparing.named_plan import plan_inputs
from sparkdl.data.preparing.order import SPLIT
from sparkdl.data.preparing.row_problems import find_problems
from sparkdl.data.working_columns import WORKING
from sparkdl.errors import DataError
from sparkdl.settings import Prepare
from sparkdl.storage import exists, join, read_file

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

__all__ = ["split_rows"]

_ROW = f"{WORKING}row"
"""The working column that holds all columns of a row."""


def split_rows(rows: "DataFrame", settings: Prepare, split: str) -> "DataFrame":
    """The raw rows that :func:`prepare` with these settings puts into ``split``. Runs on the driver, lazily.

    If there is a dataset in ``settings.output``, its rule decides: older datasets, made before rows were drawn
    independently, have other rows in their splits. Rows that ``on_bad_rows: skip`` left out are included: scoring
    reports what is wrong with each.

    Raises :class:`DataError` for a split that the settings do not make.
    """
    from pyspark.sql import functions as sf

    if not settings.split.column and split not in settings.split.names:
        raise DataError(f"there is no split {split!r}; there are {', '.join(settings.split.names)}")
    inputs = plan_inputs(rows, settings)
    content = list(dict.fromkeys([*inputs.raw_columns, *settings.keys]))
    drawn = with_hashes(raw_rows(rows, inputs, settings, row=_ROW), content, settings)
    if settings.split.fractions and draws_rows(settings) and _rule(settings) == "row":
        beside = {
            f"{WORKING}column{place}": sf.col(f"{_ROW}.`{place}`")
            for place, column in enumerate(rows.schema.fields)
            if column.name != PROBLEM and _is_hashed(column.dataType)
        }
        drawn = with_numbers(drawn.withColumns(beside), settings, then_by=list(beside))
    if settings.split.stratify:
        drawn = _stratified(drawn, inputs, settings)
    placed = with_split(drawn, settings)
    return placed.where(placed[SPLIT] == split).select(f"{_ROW}.*").toDF(*rows.columns)


def _rule(settings: Prepare) -> str:
    """By which rule rows are drawn: the dataset's own, if it is there."""
    path = join(settings.output, CARD_NAME)
    return Card.from_json(read_file(path), origin=path).split_by if exists(path) else DRAWN_BY


def _stratified(rows: "DataFrame", inputs: InputPlan, settings: Prepare) -> "DataFrame":
    """The rows with their strata, which are made of those that can be used."""
    task = find_task(rows, settings)
    check_strata(task, settings)
    rows = good = rows.withColumn(LABEL, working_label(rows, settings, task))
    if settings.weight:
        good = rows.withColumn(WEIGHT, working_weight(rows, settings))
    if files := with_files(rows, inputs):
        good = decoded(good.drop(_ROW), inputs, files)
    if PROBLEM in rows.columns:
        good = good.where(good[PROBLEM].isNull())
    good = good.where(what_is_wrong(find_problems(good, inputs, settings, task)) == 0)
    return with_strata(rows, find_strata(good, settings))


def _is_hashed(kind: "DataType") -> bool:
    """Whether Spark has a hash for values of this type."""
    return not re.search(r"\b(map<|variant\b|geo)", kind.simpleString())
