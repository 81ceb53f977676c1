"""Draws the split of each row.

A split depends only on the row's content, its number among equal rows, and the seed. Equal rows are interchangeable, so
the same rows give the same dataset, however Spark partitions them and whichever numbers equal rows get.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sparkdl.data.preparing.label_column import LABEL
from sparkdl.data.preparing.order import CONTENT_HASH, ORDER, SPLIT, hash_of
from sparkdl.data.preparing.split_columns import split_by_time
from sparkdl.data.sql import identifier
from sparkdl.data.working_columns import WORKING
from sparkdl.errors import DataError
from sparkdl.settings import Prepare
from sparkdl.settings.section import TaskName

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = [
    "DRAW",
    "GIVEN",
    "begin_of_train",
    "check_strata",
    "draws_rows",
    "find_strata",
    "in_train",
    "shares",
    "split_ends",
    "with_given",
    "with_hashes",
    "with_numbers",
    "with_order",
    "with_split",
    "with_strata",
]

DRAW = f"{WORKING}draw"
"""The hash that decides the split: of the row, or of the columns of ``split.group``, and of the seed."""
GIVEN = f"{WORKING}given"
"""The split of a row before any are drawn: from a column or a time, else ``train``."""
_NUMBER = f"{WORKING}number"
_END = f"{WORKING}end"
"""The prefix of working columns with the share below which the rows of a class move to a split."""
_UNIT = 1 << 53
"""Hashes modulo this, divided by it, are exact doubles that are uniform in [0, 1)."""


def draws_rows(settings: Prepare) -> bool:
    """Whether each row is drawn independently. Otherwise the rows of a group are drawn together."""
    return not settings.qid and not settings.split.group


def with_given(rows: "DataFrame", settings: Prepare) -> "DataFrame":
    """Add the given split of each row, and the hash of its group, if rows are drawn in groups.

    Runs on the driver, lazily.
    """
    if settings.split.time:
        rows = rows.withColumn(GIVEN, split_by_time(rows, settings.split.time))
    elif settings.split.column:
        rows = rows.withColumn(GIVEN, rows[identifier(settings.split.column)].cast("string"))
    together = settings.split.group or ([settings.qid] if settings.qid else [])
    return rows.withColumn(DRAW, hash_of(together, settings.seed, "split")) if together else rows


def with_hashes(rows: "DataFrame", content: Sequence[str], settings: Prepare) -> "DataFrame":
    """Add each row's hashes. Runs on the driver, lazily. ``content`` are the columns that identify a row."""
    given = with_given(rows, settings)
    hashes = [hash_of(content, 0, "content").alias(CONTENT_HASH)]
    if DRAW not in given.columns:
        hashes.append(hash_of(content, settings.seed, "split").alias(DRAW))
    return with_order(given.select("*", *hashes), settings)


def with_order(rows: "DataFrame", settings: Prepare) -> "DataFrame":
    """Add the hash by which rows are sorted, to rows with the hash of their content. Runs on the driver, lazily."""
    return rows.withColumn(ORDER, hash_of([CONTENT_HASH], settings.seed, "order"))


def with_numbers(rows: "DataFrame", settings: Prepare, *, then_by: Sequence[str] = ()) -> "DataFrame":
    """Number equal rows, and include the number in the hashes for split and order. Runs on the driver, lazily.

    The first of several equal rows has the same hashes as if it were alone. ``then_by`` are columns that decide the
    order of equal rows, if the caller keeps columns that are not in the dataset. Different rows with one equal hash are
    numbered by their other hash.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as sf

    others = [sf.xxhash64(*map(identifier, then_by))] if then_by else []
    number = sf.row_number().over(Window.partitionBy(CONTENT_HASH).orderBy(DRAW, *others))
    numbered = [ORDER, *([DRAW] if draws_rows(settings) else [])]
    own = {name: sf.when(sf.col(_NUMBER) == 1, sf.col(name)).otherwise(sf.xxhash64(name, _NUMBER)) for name in numbered}
    return rows.withColumn(_NUMBER, number).withColumns(own).drop(_NUMBER)


def with_split(rows: "DataFrame", settings: Prepare) -> "DataFrame":
    """Add each row's split. Runs on the driver, lazily. ``rows`` have hashes, and with ``stratify`` their strata."""
    from pyspark.sql import functions as sf

    before = _given(settings)
    split = before
    for number, (name, end) in reversed(list(enumerate(split_ends(settings)))):
        below = _share() < (sf.col(f"{_END}{number}") if settings.split.stratify else sf.lit(end))
        split = sf.when(_in_train(before, settings) & below, sf.lit(name)).otherwise(split)
    ends = [f"{_END}{number}" for number in range(len(settings.split.fractions))]
    return rows.withColumn(SPLIT, split).drop(DRAW, GIVEN, *ends)


def begin_of_train(settings: Prepare) -> float:
    """The share from which rows stay in ``train``."""
    return max((end for _, end in split_ends(settings)), default=0.0)


def in_train(draw: NDArray[np.int64], begin: float) -> NDArray[np.bool_]:
    """Whether :func:`with_split` leaves rows in ``train``, whose range follows all other shares. Runs in a task."""
    stays: NDArray[np.bool_] = shares(draw) >= begin
    return stays


def shares(draw: NDArray[np.int64]) -> NDArray[np.float64]:
    """The number in [0, 1) of each row, from its hash. Runs in a task."""
    found: NDArray[np.float64] = np.mod(draw, _UNIT) / float(_UNIT)
    return found


def check_strata(task: TaskName | None, settings: Prepare) -> None:
    """Raise :class:`DataError` if ``stratify`` is set, but rows do not have a single class each."""
    if settings.split.stratify and task != "classification":
        raise DataError(
            f"`split.stratify` splits the rows of each class separately, but the label column {settings.label!r} is"
            f" for {task}: leave `stratify` out, or set `task: classification`"
        )


def find_strata(good: "DataFrame", settings: Prepare) -> "DataFrame":
    """For each class, the shares below which its rows move to splits, so that each split has its share of the class.

    Runs on the driver, lazily. ``good`` are the usable rows, with hashes and label; only these columns are shuffled.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as sf

    training = good.where(_in_train(_given(settings), settings)).select(LABEL, _share().alias(DRAW))
    of_class = Window.partitionBy(LABEL)
    ranked = training.select(
        "*",
        (sf.row_number().over(of_class.orderBy(DRAW)) - 1).alias("place"),
        sf.count("*").over(of_class).alias("rows"),
    )
    bounds = []
    for number, (_, end) in enumerate(split_ends(settings)):
        taken = sf.least(sf.floor(sf.lit(end) * sf.col("rows") + 0.5), sf.col("rows") - 1)  # one stays in `train`
        bounds.append(sf.min(sf.when(sf.col("place") >= taken, sf.col(DRAW))).alias(f"{_END}{number}"))
    return ranked.groupBy(LABEL).agg(*bounds)


def with_strata(rows: "DataFrame", strata: "DataFrame") -> "DataFrame":
    """Add to each row the shares that :func:`find_strata` found for its class. Runs on the driver, lazily."""
    from pyspark.sql import functions as sf

    return rows.join(sf.broadcast(strata), LABEL, "left")


def _given(settings: Prepare) -> "Column":
    """The split of a row before any are drawn."""
    from pyspark.sql import functions as sf

    return sf.col(GIVEN) if settings.split.column or settings.split.time else sf.lit("train")


def _in_train(split: "Column", settings: Prepare) -> "Column":
    from pyspark.sql import functions as sf

    known = not settings.split.column and not settings.split.time
    return sf.lit(True) if known else split == "train"  # Spark warns about trivially true conditions


def _share() -> "Column":
    """The number in [0, 1) of a row, from its hash."""
    from pyspark.sql import functions as sf

    return sf.pmod(sf.col(DRAW), sf.lit(_UNIT)) / sf.lit(float(_UNIT))


def split_ends(settings: Prepare) -> list[tuple[str, float]]:
    """The splits for which rows are drawn, each with the upper end of its share, in order."""
    fractions = dict(sorted(settings.split.fractions.items()))
    return list(zip(fractions, accumulate(fractions.values()), strict=True))
