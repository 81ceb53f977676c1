"""Text from outside that becomes SQL: a condition, the name of a column. Runs on the driver.

Before Spark parses a text, it replaces every ``${...}`` in it by a setting or a variable of the environment, so that
``ref${x}lect(...)`` calls ``reflect``. What is judged here is therefore what Spark has parsed, or a text in which there
is nothing to replace.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from sparkdl.errors import ConfigError, DataError
from sparkdl.sessions import require_classic

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["by_place", "condition", "identifier"]

_NODES = """
    UnresolvedAttribute UnresolvedExtractValue UnresolvedFunction Literal CreateNamedStruct Cast CaseWhen
    And Or Not EqualTo EqualNullSafe LessThan LessThanOrEqual GreaterThan GreaterThanOrEqual In IsNull IsNotNull
    Like ILike LikeAll LikeAny NotLikeAll NotLikeAny RLike
    Add Subtract Multiply Divide IntegralDivide Remainder UnaryMinus UnaryPositive
    BitwiseAnd BitwiseOr BitwiseXor BitwiseNot
    Concat Substring StringTrim StringTrimLeft StringTrimRight StringLocate TimestampAdd TimestampDiff
"""
"""What Spark's parser may make of a condition: the names of classes in ``org.apache.spark.sql.catalyst``."""

_FUNCTIONS = """
    bigint boolean date decimal double float int smallint string timestamp tinyint
    between coalesce if ifnull isnan isnotnull isnull nanvl nullif nvl nvl2
    char_length concat concat_ws contains endswith initcap instr left length locate lower ltrim regexp_extract
    regexp_like regexp_replace replace reverse right rtrim split startswith substr substring substring_index
    translate trim upper
    abs bround cbrt ceil ceiling exp floor greatest least ln log log10 log2 mod pmod pow power rand round sign sqrt
    add_months current_date current_timestamp date_add date_diff date_part date_sub date_trunc datediff day dayofmonth
    dayofweek dayofyear extract hour last_day minute month months_between now quarter second to_date to_timestamp
    trunc unix_timestamp weekofyear year
    array array_contains array_max array_min array_position arrays_overlap cardinality element_at map_contains_key
    map_keys map_values size
    crc32 hash md5 sha1 sha2 xxhash64
"""
"""Spark's functions that only compute: of types, nulls, texts, numbers, times, arrays and maps, and hashes."""


def condition(text: str, *, key: str) -> "Column":
    """A SQL condition from a configuration, to filter rows by.

    It may compare columns and constants by operators and by Spark's plain functions. Raises :class:`ConfigError`, which
    names the setting ``key``, for one that Spark cannot parse or in which there is anything else: subqueries, functions
    that call Java or read files, functions of the session or the catalog.
    """
    from pyspark.errors import ParseException
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as sf

    spark = SparkSession.active()
    require_classic(spark, key)  # a server does not show what it makes of a text
    parser = spark._jsparkSession.sessionState().sqlParser()
    try:
        parsed = parser.parseExpression(text)  # as `expr` does, whose column does not show it in Spark 4
    except ParseException as error:
        raise ConfigError(f"{key}: {text!r} is no SQL condition: {str(error).strip().splitlines()[0]}") from None
    for node in _nodes(parsed):
        kind = node.getClass().getName().rpartition(".")[2]
        if kind not in _NODES.split():
            raise ConfigError(_refusal(key, kind))
        if kind == "UnresolvedFunction":
            name = node.nameParts().mkString(".")
            if name.lower() not in _FUNCTIONS.split():
                raise ConfigError(_refusal(key, f"the function {name!r}"))
    return sf.expr(text)


def by_place(rows: "DataFrame", columns: Sequence["str | Column"]) -> "DataFrame":
    """Some columns, named by their places, for tasks. Runs on the driver, lazily.

    Where tasks are to have rows, PySpark would take a dot in the name of a column for the one in front of a field.
    """
    from pyspark.sql import functions as sf

    chosen = [sf.col(identifier(column)) if isinstance(column, str) else column for column in columns]
    return rows.select(*[column.alias(str(place)) for place, column in enumerate(chosen)])


def identifier(name: str) -> str:
    """A column's name as it stands in SQL. Raises :class:`DataError` for one that Spark would change."""
    if "${" in name:
        raise DataError(f"the column {name!r} cannot be used: Spark replaces what stands in ${{}}; rename the column")
    return f"`{name.replace('`', '``')}`"


def _nodes(expression: Any) -> Iterator[Any]:
    """The expression and all that it consists of, as Spark's parser understood it."""
    waiting = [expression]
    while waiting:
        node = waiting.pop()
        yield node
        children = node.children()
        waiting += [children.apply(number) for number in range(children.size())]


def _refusal(key: str, what: str) -> str:
    return (
        f"{key}: a condition must not use {what}; it may compare columns and constants by operators and plain"
        " functions. For anything else, filter the rows in Python and hand them to sparkdl.score"
    )
