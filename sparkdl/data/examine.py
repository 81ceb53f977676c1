"""What the raw rows are, found in one pass: how many, which labels, a fingerprint; and what is wrong with them."""

import math
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkdl.config import Prepare
from sparkdl.data.card import PREPROCESSING, SPLIT_NAME
from sparkdl.data.features import Inputs
from sparkdl.data.order import CONTENT_HASH, SPLIT
from sparkdl.errors import DataError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

__all__ = ["LABEL_NAME", "Findings", "examine", "label_name"]

LABEL_NAME = "_label"
"""The working column that holds each row's label as text."""
_SHOWN_LABELS = 5
"""Unknown labels that an error lists."""
_FINGERPRINT_BITS = 128
"""Room for the sum of 64-bit hashes of as many rows as there can be."""


@dataclass(frozen=True)
class Findings:
    """What one pass over the raw rows found."""

    label_names: tuple[str, ...]
    """Of the training split, sorted: as numbers when all of them are whole numbers."""
    class_counts: dict[str, tuple[int, ...]]
    """Rows per class, by split."""
    fingerprint: str
    """Of the content, whatever the order of the rows."""

    @property
    def split_rows(self) -> dict[str, int]:
        """Rows by split."""
        return {split: sum(counts) for split, counts in self.class_counts.items()}


def label_name(rows: "DataFrame", label: str) -> "Column":
    """A row's label as text, null where there is none. Raises :class:`DataError` for types that are no labels."""
    from pyspark.sql import functions as sf
    from pyspark.sql.types import BooleanType, DecimalType, DoubleType, FloatType, IntegralType, StringType

    kind: DataType = rows.schema[label].dataType
    value = sf.col(f"`{label}`")
    if isinstance(kind, StringType | IntegralType | BooleanType):
        return value.cast("string")
    if isinstance(kind, FloatType | DoubleType | DecimalType):
        return sf.when(~sf.isnan(value.cast("double")), value.cast("bigint").cast("string"))
    raise DataError(f"the label column {label!r} is {kind.simpleString()}; labels are whole numbers or strings")


def examine(rows: "DataFrame", inputs: Inputs, settings: Prepare) -> Findings:
    """Count, fingerprint and check the raw rows. Runs on the driver; rows are read by tasks, once.

    Raises :class:`DataError` that names the column and the count: missing labels or inputs, labels that the training
    split does not have, splits that are smaller than the number of ranks.
    """
    from pyspark.sql import functions as sf

    problems = _label_problems(rows, settings.label) | _input_problems(rows, inputs)
    found = (
        rows.groupBy(SPLIT, LABEL_NAME)
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
            raise DataError(problem.format(count=f"{count:,}"))
    counts: dict[str, dict[str, int]] = defaultdict(dict)
    for row in found:
        _check_keys(row, settings)
        counts[row[SPLIT]][row[LABEL_NAME]] = row["rows"]
    total = sum(row["rows"] for row in found)
    hashes = sum(int(row["hashes"]) for row in found) % 2**_FINGERPRINT_BITS
    label_names = _label_names(counts, settings)
    return Findings(
        label_names,
        {split: tuple(counts[split].get(name, 0) for name in label_names) for split in sorted(counts)},
        f"{total}-{hashes:x}",
    )


def _label_problems(rows: "DataFrame", label: str) -> "dict[str, Column]":
    from pyspark.sql import functions as sf
    from pyspark.sql.types import DecimalType, DoubleType, FloatType

    if not isinstance(rows.schema[label].dataType, FloatType | DoubleType | DecimalType):
        return {}
    value = sf.col(f"`{label}`").cast("double")
    fractional = value.isNotNull() & ~sf.isnan(value) & (value != value.cast("bigint"))
    return {f"the label column {label!r} has {{count}} rows that are not whole numbers; bin them first": fractional}


def _input_problems(rows: "DataFrame", inputs: Inputs) -> "dict[str, Column]":
    """A message for each thing that can be wrong with the inputs, and the test that finds the rows where it is."""
    from pyspark.sql import functions as sf

    if inputs.shape:
        pixels = (
            f"`{inputs.column}`.data"
            if inputs.raw_columns[inputs.column].startswith("struct")
            else f"`{inputs.column}`"
        )
        expected = " x ".join(map(str, inputs.shape))
        return {
            f"column {inputs.column!r} has {{count}} rows without an image; drop them": sf.col(pixels).isNull(),
            f"column {inputs.column!r} has {{count}} images that are not {expected} bytes; give all of them one size": (
                sf.length(pixels) != sf.lit(math.prod(inputs.shape))
            ),
        }
    problems: dict[str, Column] = {}
    for name, kind in inputs.raw_columns.items():
        value = sf.col(f"`{name}`")
        hint = "drop these rows or add the stage `impute`"
        if kind.startswith("array"):
            missing = value.isNull() | sf.exists(value, lambda x: x.isNull() | sf.isnan(x.cast("double")))
            hint = "drop these rows"
        elif kind in ("float", "double"):
            missing = value.isNull() | sf.isnan(value)
        else:
            missing = value.isNull()
        if name not in inputs.may_be_missing:
            problems[f"column {name!r} has {{count}} rows that are null or NaN; {hint}"] = missing
    return problems


def _check_keys(row: Any, settings: Prepare) -> None:
    count = f"{row['rows']:,}"
    if row[SPLIT] is None:
        raise DataError(
            f"the split column {settings.split.column!r} is null in {count} rows; name their split or drop them"
        )
    if not SPLIT_NAME.fullmatch(row[SPLIT]) or row[SPLIT] == PREPROCESSING:
        raise DataError(
            f"{row[SPLIT]!r} in column {settings.split.column!r} is no name for a split: use letters, digits, - and _"
        )
    if row[LABEL_NAME] is None:
        raise DataError(
            f"the label column {settings.label!r} is null in {count} rows of split {row[SPLIT]!r}; drop or label them"
        )


def _label_names(counts: Mapping[str, Mapping[str, int]], settings: Prepare) -> tuple[str, ...]:
    if "train" not in counts:
        raise DataError(
            f"no row is in the split 'train'; column {settings.split.column!r} has {', '.join(sorted(counts))}"
        )
    names = set(counts["train"])
    for split, labels in sorted(counts.items()):
        unseen = {name: count for name, count in labels.items() if name not in names}
        if unseen:
            shown = ", ".join(map(repr, sorted(unseen)[:_SHOWN_LABELS]))
            raise DataError(
                f"{sum(unseen.values()):,} rows of split {split!r} have {len(unseen):,} labels that the training split "
                f"does not have: {shown}{', ...' if len(unseen) > _SHOWN_LABELS else ''}. Move some of their rows to "
                "training, or drop them."
            )
        if sum(labels.values()) < settings.num_ranks:
            raise DataError(
                f"split {split!r} has {sum(labels.values())} rows, fewer than the {settings.num_ranks} ranks that "
                "share it; lower `num_ranks` or give it more rows"
            )
    numeric = all(re.fullmatch(r"-?\d+", name) for name in names)
    return tuple(sorted(names, key=(lambda name: (int(name), name)) if numeric else None))
