"""Groups of rows that are ranked within: checked, counted, and each gathered into one example. Runs on the driver."""

from typing import TYPE_CHECKING, NamedTuple

from sparkdl.data.card import LABEL_COLUMN, WEIGHT_COLUMN
from sparkdl.data.preparing.features import InputPlan
from sparkdl.data.preparing.label_column import WEIGHT
from sparkdl.data.preparing.order import CONTENT_HASH, ORDER, SPLIT, hash_of
from sparkdl.data.query_rows import LARGEST_QUERY
from sparkdl.data.sql import identifier
from sparkdl.data.working_columns import WORKING
from sparkdl.errors import DataError
from sparkdl.settings import Prepare

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

__all__ = ["NAMED_BY", "QUERY", "Queries", "check_query", "count_queries", "gathered", "name_types"]

QUERY = f"{WORKING}query"
"""The working column that says which group a row is of."""
NAMED_BY = "a group is named by a whole number or a text"


class Queries(NamedTuple):
    """The groups that were found."""

    counts: dict[str, int]
    """Groups by split."""
    largest: int = 1
    """Rows of the largest one."""
    mean: float = 1.0
    """Rows of one on average."""


def name_types() -> "tuple[type[DataType], ...]":
    """The types of a column that may name groups."""
    from pyspark.sql.types import DecimalType, IntegralType, StringType

    return IntegralType, DecimalType, StringType


def check_query(rows: "DataFrame", inputs: InputPlan, settings: Prepare) -> None:
    """Raise :class:`DataError` for a column that cannot name groups, and for what is not ranked."""
    kind = rows.schema[str(settings.qid)].dataType
    if not isinstance(kind, name_types()):
        raise DataError(f"the column {settings.qid!r} (qid) is {kind.simpleString()}: {NAMED_BY}")
    if inputs.kind == "image":
        raise DataError(f"{inputs.source!r} holds images, and ranking takes `features`; name other columns")


def count_queries(rows: "DataFrame", settings: Prepare) -> Queries:
    """Count groups; tasks read the rows. ``rows`` have their split, and where there are such their weights.

    Raises :class:`DataError` with the count for groups that are too large, or whose rows do not belong together.
    """
    from pyspark.sql import functions as sf

    weight = sf.col(WEIGHT) if settings.weight else sf.lit(1.0)
    of_each = rows.groupBy(identifier(str(settings.qid))).agg(
        sf.min(SPLIT).alias(SPLIT),
        (sf.min(SPLIT) != sf.max(SPLIT)).alias("scattered"),
        (sf.min(weight) != sf.max(weight)).alias("uneven"),
        sf.count("*").alias("rows"),
    )
    tests = {"scattered": sf.col("scattered"), "uneven": sf.col("uneven"), "large": sf.col("rows") > LARGEST_QUERY}
    found = of_each.groupBy(SPLIT).agg(
        sf.count("*").alias("queries"),
        sf.sum("rows").alias("rows"),
        sf.max("rows").alias("largest"),
        *[sf.sum(test.cast("bigint")).alias(name) for name, test in tests.items()],
    )
    splits = found.orderBy(SPLIT).collect()
    largest = max(row.largest for row in splits)
    problems = {
        "scattered": "have rows in several splits; a group belongs into one",
        "uneven": f"have rows of different weight (column {settings.weight!r}); a weight is a whole group's",
        "large": f"have more than {LARGEST_QUERY:,} rows, the largest {largest:,}; leave out some of their rows",
    }
    for name, problem in problems.items():
        if count := sum(row[name] for row in splits):
            raise DataError(f"{count:,} groups of the column {settings.qid!r} {problem}")
    counts = {row[SPLIT]: row.queries for row in splits}
    return Queries(counts, largest, sum(row.rows for row in splits) / sum(counts.values()))


def gathered(rows: "DataFrame", column: str, settings: Prepare) -> "DataFrame":
    """A row for each group, with the features and labels of its rows as arrays, its weight, and its place in the order.

    Within a group rows are in the order of their hashes, so that their places tell nothing of their labels. ``rows``
    have the columns of the dataset, :data:`QUERY`, split and hashes; ``column`` holds the features.
    """
    from pyspark.sql import functions as sf

    kept = [column, LABEL_COLUMN, *([WEIGHT_COLUMN] if settings.weight else [])]
    together = sf.sort_array(sf.collect_list(sf.struct(ORDER, CONTENT_HASH, *kept)))
    queries = rows.groupBy(SPLIT, QUERY).agg(together.alias("rows"))
    arrays = [sf.col("rows")[name].alias(name) for name in (column, LABEL_COLUMN)]
    weights = [sf.col("rows")[0][WEIGHT_COLUMN].alias(WEIGHT_COLUMN)] if settings.weight else []
    order = hash_of([QUERY], settings.seed, "order").alias(ORDER)
    return queries.select(*arrays, *weights, SPLIT, order, hash_of([QUERY], 0, "content").alias(CONTENT_HASH))
