"""Examines the raw rows in one pass: their number, labels, fingerprint, and problems."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal  # unlike int, of any number of digits
from functools import partial
from typing import TYPE_CHECKING, Any

from sparkdl.data.bad_rows import COUNT, WRONG, Problem, report, what_is_wrong
from sparkdl.data.card import PREPROCESSING, SPLIT_NAME
from sparkdl.data.preparing.label_column import LABEL
from sparkdl.data.preparing.order import CONTENT_HASH, SPLIT
from sparkdl.data.preparing.queries import Queries, count_queries
from sparkdl.errors import DataError
from sparkdl.settings import Prepare
from sparkdl.settings.section import TaskName

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

__all__ = ["Findings", "check_sizes", "examine", "summed_up"]

_SHOWN_LABELS = 5
"""The most unknown labels that an error lists."""
_FINGERPRINT_BITS = 128
"""Enough bits for the sum of the 64-bit hashes of any number of rows."""


@dataclass(frozen=True)
class Findings:
    """The results of one pass over the raw rows."""

    label_names: tuple[str, ...]
    """The labels of the training split, sorted; as numbers if all are whole numbers. Empty for numeric labels, and if
    there are very many."""
    class_counts: dict[str, tuple[int, ...]]
    """Rows per class, by split."""
    split_rows: dict[str, int]
    """Rows by split."""
    fingerprint: str
    """The fingerprint of the content, independent of the order of rows."""
    queries: Queries | None = None
    """For ranking: the groups, which ``split_rows`` then counts."""
    label_type: str | None = None
    """The Spark SQL type of a label, if labels are classes."""
    unseen: tuple[Problem, ...] = ()
    """The problems of rows whose labels no training row has."""

    def usable(self, rows: "DataFrame") -> "DataFrame":
        """The rows that were counted. ``rows`` must have the columns that :func:`examine` needs."""
        good = rows.where(f"{WRONG} = 0").drop(WRONG)
        return good.where(what_is_wrong(self.unseen) == 0) if self.unseen else good


def examine(
    rows: "DataFrame",
    problems: Sequence[Problem],
    settings: Prepare,
    task: TaskName | None,
    *,
    named: "Callable[[], DataFrame] | None" = None,
) -> Findings:
    """Count, fingerprint and check the raw rows. Runs on the driver; tasks read the rows, once.

    ``rows`` have the number of their problem in ``problems``. ``named`` returns the same rows with the values by which
    errors name them, and is only called if a row has to be named; by default ``rows`` have these values.

    Rows with a problem, or with labels that the training split does not have, cannot be used. Raises
    :class:`DataError` with their number and the first ones; with ``on_bad_rows: skip``, logs a warning and leaves them
    out (:meth:`Findings.usable`). Also raises it for a split of the settings with fewer rows than ranks.
    """
    from pyspark.sql import functions as sf

    skip = settings.on_bad_rows == "skip"
    keys = [SPLIT, LABEL] if task == "classification" else [SPLIT]
    found = (
        rows.groupBy(*keys, WRONG)
        .agg(
            sf.count("*").alias("rows"),
            sf.sum(sf.col(CONTENT_HASH).cast("decimal(38,0)")).alias("hashes"),
        )
        .collect()
    )
    wrong = Counter[int]()
    for row in found:
        wrong[row[WRONG]] += row["rows"]
    unfit = named or partial(_same, rows)
    if wrong.total() > wrong[0]:
        report(unfit(), problems, wrong, skip=skip)
    if not wrong[0]:
        raise DataError(f"there are no rows to prepare{f': none of {wrong.total():,} can be used' if wrong else ''}")
    if len(wrong) > 1:
        rows, unfit = rows.where(f"{WRONG} = 0"), _changed(unfit, lambda each: each.where(f"{WRONG} = 0"))
        found = [row for row in found if not row[WRONG]]
    split_rows, fingerprint = _added(found, settings)
    queries = count_queries(rows, settings) if task == "ranking" else None
    split_rows = queries.counts if queries else split_rows
    check_sizes(split_rows, settings)
    if task not in ("classification", "multi_label"):
        return Findings((), dict.fromkeys(split_rows, ()), split_rows, fingerprint, queries)
    if task == "multi_label":
        labels = rows.select(SPLIT, sf.explode(LABEL).alias(LABEL))
        found = labels.groupBy(SPLIT, LABEL).agg(sf.count("*").alias("rows")).collect()
    counts = _of_labels(found)
    if unseen := _unseen_labels(counts, task):
        judged = rows.withColumn(WRONG, what_is_wrong(unseen))
        unfit = _changed(unfit, lambda each: each.withColumn(WRONG, what_is_wrong(unseen)))
        return replace(examine(judged, unseen, settings, task, named=unfit), unseen=tuple(unseen))  # or raises
    return _of_classes(counts, split_rows, fingerprint, settings)


def summed_up(found: "Collection[Row]", settings: Prepare, task: TaskName) -> Findings | None:
    """The result of :func:`examine` for rows without problems, from tasks' counts of each split and label.

    None if there are labels that no training row has. Runs on the driver. Raises the errors of :func:`examine`.
    """
    split_rows, fingerprint = _added(found, settings)
    check_sizes(split_rows, settings)
    if task != "classification":
        return Findings((), dict.fromkeys(split_rows, ()), split_rows, fingerprint)
    counts = _of_labels(found)
    if _unseen_labels(counts, task):
        return None
    return _of_classes(counts, split_rows, fingerprint, settings)


def _added(found: "Collection[Row]", settings: Prepare) -> tuple[dict[str, int], str]:
    """The rows of each split, and the fingerprint of all."""
    split_rows: dict[str, int] = defaultdict(int)
    for row in found:
        _check_split(row, settings)
        split_rows[row[SPLIT]] += row["rows"]
    hashes = sum(int(row["hashes"]) for row in found) % 2**_FINGERPRINT_BITS
    return dict(sorted(split_rows.items())), f"{sum(split_rows.values())}-{hashes:x}"


def _of_labels(found: "Collection[Row]") -> dict[str, dict[str, int]]:
    """The number of rows by split and label."""
    counts: dict[str, dict[str, int]] = defaultdict(dict)
    for row in found:
        counts[row[SPLIT]][row[LABEL]] = row["rows"]
    return counts


def _of_classes(
    counts: Mapping[str, Mapping[str, int]], split_rows: dict[str, int], fingerprint: str, settings: Prepare
) -> Findings:
    label_names = _label_names(counts["train"])
    if settings.class_names and not settings.class_names.keys() & set(label_names):
        shown = f"{', '.join(label_names[:_SHOWN_LABELS])}{', ...' if len(label_names) > _SHOWN_LABELS else ''}"
        raise DataError(f"`class_names` has none of the labels ({shown}); write {{label: name}}")
    class_counts = {split: tuple(counts[split].get(name, 0) for name in label_names) for split in split_rows}
    return Findings(label_names, class_counts, split_rows, fingerprint)


def _same(rows: "DataFrame") -> "DataFrame":
    return rows


def _changed(rows: "Callable[[], DataFrame]", change: "Callable[[DataFrame], DataFrame]") -> "Callable[[], DataFrame]":
    """A function that returns the changed rows when it is called."""
    return lambda: change(rows())


def _check_split(row: Any, settings: Prepare) -> None:
    if not SPLIT_NAME.fullmatch(row[SPLIT]) or row[SPLIT] == PREPROCESSING:
        raise DataError(
            f"{row[SPLIT]!r} in column {settings.split.column!r} is not a valid name of a split: use letters, digits, -"
            " and _"
        )


def check_sizes(split_rows: Mapping[str, int], settings: Prepare) -> None:
    """Raise :class:`DataError` if a split of the settings has fewer rows than ranks."""
    if "train" not in split_rows and settings.split.column:
        raise DataError(f"no row is in the split 'train'; column {settings.split.column!r} has {', '.join(split_rows)}")
    for split, rows in (dict.fromkeys(settings.split.names, 0) | dict(split_rows)).items():
        if rows < settings.num_ranks:
            what = "groups" if settings.qid else "rows"
            drawn = f"groups by {', '.join(settings.split.group)}" if settings.split.group else what
            by_hash = f", with another share or `seed`: {drawn} are drawn by a hash"
            raise DataError(
                f"split {split!r} has {rows} of {sum(split_rows.values()):,} {what}, fewer than the"
                f" {settings.num_ranks} ranks that share it; lower `num_ranks` or give it more {what}"
                f"{by_hash if split in settings.split.fractions else ''}"
            )


def _unseen_labels(counts: Mapping[str, Mapping[str, int]], task: TaskName) -> list[Problem]:
    """For each split, the problem of rows whose labels no training row has."""
    from pyspark.sql import functions as sf

    problems = []
    for split, labels in sorted(counts.items()):
        unseen = sorted(labels.keys() - counts["train"].keys())
        if unseen:
            shown = f"{', '.join(map(repr, unseen[:_SHOWN_LABELS]))}{', ...' if len(unseen) > _SHOWN_LABELS else ''}"
            # A single literal: Spark would be slow to analyse a plan with ten thousand of them.
            listed = sf.from_json(sf.lit(json.dumps(unseen)), "array<string>")
            given = sf.col(LABEL) if task == "multi_label" else sf.array(LABEL)
            problems.append(
                Problem(
                    f"{COUNT} rows of split {split!r} have labels that the training split does not have"
                    f" ({len(unseen):,}: {shown})",
                    "move some of the rows of these labels to training, drop them, set `sparse`, set `task: regression`"
                    " for numbers of which any may come",
                    (sf.col(SPLIT) == split) & sf.arrays_overlap(given, listed),
                )
            )
    return problems


def _label_names(names: Collection[str]) -> tuple[str, ...]:
    if not names:
        raise DataError("the rows of the split 'train' have no labels; there is nothing to learn")
    numeric = all(re.fullmatch(r"-?\d+", name) for name in names)
    return tuple(sorted(names, key=(lambda name: (Decimal(name), name)) if numeric else None))
