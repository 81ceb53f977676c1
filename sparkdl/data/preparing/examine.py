"""What the raw rows are, found in one pass: how many, which labels, a fingerprint; and what is wrong with them."""

import math
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal  # unlike int, of any number of digits
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

from sparkdl.data.bad_rows import COUNT
from sparkdl.data.card import PREPROCESSING, SPLIT_NAME
from sparkdl.data.preparing.features import Inputs, image_fits, width_of
from sparkdl.data.preparing.label_column import LABEL, label_problems
from sparkdl.data.preparing.order import CONTENT_HASH, SPLIT
from sparkdl.data.preparing.queries import Queries, count_queries
from sparkdl.data.sql import identifier
from sparkdl.errors import DataError
from sparkdl.settings import Prepare
from sparkdl.settings.section import TaskName

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["Findings", "examine", "find_problems"]

_A_WORD = r"(?U)\w"
_SHOWN_LABELS = 5
"""Unknown labels that an error lists."""
_FINGERPRINT_BITS = 128
"""Room for the sum of 64-bit hashes of as many rows as there can be."""


@dataclass(frozen=True)
class Findings:
    """What one pass over the raw rows found."""

    label_names: tuple[str, ...]
    """Of the training split, sorted: as numbers when all of them are whole numbers. Empty where labels are numbers
    themselves, or very many."""
    class_counts: dict[str, tuple[int, ...]]
    """Rows per class, by split."""
    split_rows: dict[str, int]
    """Rows by split."""
    fingerprint: str
    """Of the content, whatever the order of the rows."""
    queries: Queries | None = None
    """The groups that are ranked within, which ``split_rows`` counts then."""


def find_problems(rows: "DataFrame", inputs: Inputs, settings: Prepare, task: TaskName | None) -> "dict[str, Column]":
    """A message for each thing that can be wrong with a row, and the test that finds the rows where it is."""
    problems = label_problems(rows, settings, task) | _input_problems(rows, inputs)
    return problems | _feature_problems(inputs) if task is None else problems


def examine(rows: "DataFrame", problems: "Mapping[str, Column]", settings: Prepare, task: TaskName | None) -> Findings:
    """Count, fingerprint and check the raw rows. Runs on the driver; rows are read by tasks, once.

    Raises :class:`DataError` that names the column and the count: missing labels or inputs, labels that the training
    split does not have, splits, asked-for ones without a row among them, that are smaller than the number of ranks.
    """
    from pyspark.sql import functions as sf

    keys = [SPLIT, LABEL] if task == "classification" else [SPLIT]
    found = (
        rows.groupBy(*keys)
        .agg(
            sf.count("*").alias("rows"),
            sf.sum(sf.col(CONTENT_HASH).cast("decimal(38,0)")).alias("hashes"),
            *[
                sf.sum(sf.coalesce(test, sf.lit(True)).cast("bigint")).alias(f"_p{i}")
                for i, test in enumerate(problems.values())
            ],
        )
        .collect()
    )
    if not found:
        raise DataError("there are no rows to prepare")
    for index, problem in enumerate(problems):
        count = sum(row[f"_p{index}"] for row in found)
        if count:
            raise DataError(problem.replace(COUNT, f"{count:,}"))
    split_rows: dict[str, int] = defaultdict(int)
    for row in found:
        _check_split(row, settings)
        split_rows[row[SPLIT]] += row["rows"]
    hashes = sum(int(row["hashes"]) for row in found) % 2**_FINGERPRINT_BITS
    fingerprint = f"{sum(split_rows.values())}-{hashes:x}"
    queries = count_queries(rows, settings) if task == "ranking" else None
    split_rows = queries.counts if queries else dict(sorted(split_rows.items()))
    _check_sizes(split_rows, settings)
    if task not in ("classification", "multi_label"):
        return Findings((), dict.fromkeys(split_rows, ()), split_rows, fingerprint, queries)
    if task == "multi_label":
        labels = rows.select(SPLIT, sf.explode(LABEL).alias(LABEL))
        found = labels.groupBy(SPLIT, LABEL).agg(sf.count("*").alias("rows")).collect()
    counts: dict[str, dict[str, int]] = defaultdict(dict)
    for row in found:
        counts[row[SPLIT]][row[LABEL]] = row["rows"]
    label_names = _label_names(counts)
    if settings.class_names and not settings.class_names.keys() & set(label_names):
        shown = f"{', '.join(label_names[:_SHOWN_LABELS])}{', ...' if len(label_names) > _SHOWN_LABELS else ''}"
        raise DataError(f"`class_names` names none of the labels ({shown}); write {{label: name}}")
    class_counts = {split: tuple(counts[split].get(name, 0) for name in label_names) for split in split_rows}
    return Findings(label_names, class_counts, split_rows, fingerprint)


def _feature_problems(inputs: Inputs) -> "dict[str, Column]":
    """Sparse rows that have nothing to learn from, whatever the training rows are."""
    from pyspark.sql import functions as sf

    columns = [sf.col(identifier(name)) for name in inputs.raw_columns]
    names = ", ".join(map(repr, inputs.raw_columns))
    if all(kind == "string" for kind in inputs.raw_columns.values()):
        # Joined by `concat`, columns are null where one of them is, and those rows have been found already.
        blank = ~sf.concat(*columns).rlike(_A_WORD)
        return {f"{{count}} rows have no word in {names}; drop them": sf.coalesce(blank, sf.lit(False))}
    if set(inputs.raw_columns.values()) == {"vector"}:
        values = [sf.unwrap_udt(column)["values"] for column in columns]
        features = [sf.exists(value, lambda one: one != 0) for value in values]
        empty = ~reduce(or_, [sf.coalesce(feature, sf.lit(True)) for feature in features])
        return {f"{{count}} rows have no feature in {names} that is not zero; drop them": empty}
    return {}


def _input_problems(rows: "DataFrame", inputs: Inputs) -> "dict[str, Column]":
    """A message for each thing that can be wrong with the inputs, and the test that finds the rows where it is."""
    from pyspark.sql import functions as sf

    if inputs.shape:
        value, is_struct = sf.col(identifier(inputs.source)), inputs.raw_columns[inputs.source].startswith("struct")
        pixels = value["data"] if is_struct else value
        fits = sf.length(pixels) == sf.lit(math.prod(inputs.shape))
        if is_struct:
            fits &= image_fits(value, inputs.shape)
        expected = " x ".join(map(str, inputs.shape))
        return {
            f"column {inputs.source!r} has {{count}} rows without an image; drop them": pixels.isNull(),
            f"column {inputs.source!r} has {{count}} images that are not {expected} bytes; give all of them one size": (
                ~fits
            ),
        }
    problems: dict[str, Column] = {}
    for name, kind in inputs.raw_columns.items():
        value = sf.col(identifier(name))
        numbers = not kind.startswith(("array", "vector", "string"))
        hint = f"drop these rows{', add the stage `impute`,' if numbers else ''} or set `on_bad_rows: skip`"
        infinite, missing = None, value.isNull()
        if kind.startswith("array"):
            missing |= sf.exists(value, lambda x: x.isNull() | sf.isnan(x.cast("double")))
            if kind in ("array<float>", "array<double>"):
                infinite = (sf.array_max(value) == math.inf) | (sf.array_min(value) == -math.inf)
        elif kind in ("float", "double"):
            missing |= sf.isnan(value)
            infinite = sf.abs(value) == math.inf
        if name not in inputs.may_be_missing:
            problems[f"column {name!r} has {{count}} rows that are null or NaN; {hint}"] = missing
        # A test that is null (because the row is) found nothing; the test for null did, or a stage takes care of it.
        if infinite is not None and name not in inputs.may_be_infinite:
            problems[f"column {name!r} has {{count}} rows that are infinite; drop these rows"] = sf.coalesce(
                infinite, sf.lit(False)
            )
        if name in inputs.widths:
            width = inputs.widths[name]
            what = "arrays" if kind.startswith("array") else "vectors"
            problems[f"column {name!r} has {{count}} {what} that are not {width} wide, as most are"] = sf.coalesce(
                width_of(value, kind) != width, sf.lit(False)
            )
    return problems


def _check_split(row: Any, settings: Prepare) -> None:
    count = f"{row['rows']:,}"
    if row[SPLIT] is None:
        raise DataError(
            f"the split column {settings.split.column!r} is null in {count} rows; name their split or drop them"
        )
    if not SPLIT_NAME.fullmatch(row[SPLIT]) or row[SPLIT] == PREPROCESSING:
        raise DataError(
            f"{row[SPLIT]!r} in column {settings.split.column!r} is no name for a split: use letters, digits, - and _"
        )


def _check_sizes(split_rows: Mapping[str, int], settings: Prepare) -> None:
    if "train" not in split_rows and settings.split.column:
        raise DataError(f"no row is in the split 'train'; column {settings.split.column!r} has {', '.join(split_rows)}")
    for split, rows in ({"train": 0} | dict.fromkeys(settings.split.fractions, 0) | dict(split_rows)).items():
        if rows < settings.num_ranks:
            what, one = ("groups", "group's name") if settings.qid else ("rows", "row")
            by_hash = f", with another share or `seed`: a hash of the {one} and the seed chooses"
            raise DataError(
                f"split {split!r} has {rows} of {sum(split_rows.values()):,} {what}, fewer than the"
                f" {settings.num_ranks} ranks that share it; lower `num_ranks` or give it more {what}"
                f"{by_hash if split in settings.split.fractions else ''}"
            )


def _label_names(counts: Mapping[str, Mapping[str, int]]) -> tuple[str, ...]:
    names = set(counts["train"])
    for split, labels in sorted(counts.items()):
        unseen = {name: count for name, count in labels.items() if name not in names}
        if unseen:
            shown = ", ".join(map(repr, sorted(unseen)[:_SHOWN_LABELS]))
            raise DataError(
                f"{sum(unseen.values()):,} rows of split {split!r} have {len(unseen):,} labels that the training split "
                f"does not have: {shown}{', ...' if len(unseen) > _SHOWN_LABELS else ''}. Move some of their rows to "
                "training, drop them, or set `sparse`; for numbers of which any may come, set `task: regression`."
            )
    if not names:
        raise DataError("the rows of the split 'train' have no labels; there is nothing to learn")
    numeric = all(re.fullmatch(r"-?\d+", name) for name in names)
    return tuple(sorted(names, key=(lambda name: (Decimal(name), name)) if numeric else None))
