"""Checks untrusted text that becomes part of SQL: a condition, or the name of a column. Runs on the driver.

Before Spark parses a text, it replaces every ``${...}`` by a setting or an environment variable, so that
``ref${x}lect(...)`` calls ``reflect``. Therefore the checks apply to the expression that Spark has parsed, or require a
text without such placeholders.
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
"""The nodes that the parsed condition may contain: names of classes in ``org.apache.spark.sql.catalyst``."""

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
"""Spark's functions without side effects: for types, nulls, texts, numbers, times, arrays, maps, and hashes."""


def condition(text: str, *, key: str) -> "Column":
    """A SQL condition from a configuration, as a column to filter rows by.

    It may compare columns and constants by operators and Spark's plain functions. Raises :class:`ConfigError`, with the
    setting ``key``, if Spark cannot parse it or it contains anything else: subqueries, functions that call Java or read
    files, or functions of the session or the catalog.
    """
    from pyspark.errors import ParseException
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as sf

    spark = SparkSession.active()
    require_classic(spark, key)  # a server does not return the parsed expression
    parser = spark._jsparkSession.sessionState().sqlParser()
    try:
        parsed = parser.parseExpression(text)  # as `expr` does; in Spark 4, its column does not contain the expression
    except ParseException as error:
        raise ConfigError(f"{key}: {text!r} is not a SQL condition: {str(error).strip().splitlines()[0]}") from None
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
    """Some columns, named by their positions, for tasks. Runs on the driver, lazily.

    When PySpark passes rows to tasks, it would take a dot in a column's name for the separator of a field.
    """
    from pyspark.sql import functions as sf

    chosen = [sf.col(identifier(column)) if isinstance(column, str) else column for column in columns]
    return rows.select(*[column.alias(str(place)) for place, column in enumerate(chosen)])


def identifier(name: str) -> str:
    """A column's name, quoted for SQL. Raises :class:`DataError` for a name that Spark would change."""
    if "${" in name:
        raise DataError(f"the column {name!r} cannot be used, because Spark replaces ${{...}} in names; rename it")
    return f"`{name.replace('`', '``')}`"


def _nodes(expression: Any) -> Iterator[Any]:
    """The parsed expression and all its parts."""
    waiting = [expression]
    while waiting:
        node = waiting.pop()
        yield node
        children = node.children()
        waiting += [children.apply(number) for number in range(children.size())]


def _refusal(key: str, what: str) -> str:
    return (
        f"{key}: a condition must not use {what}; it may compare columns and constants by operators and plain"
        " functions. For anything else, filter the rows in Python and pass them to sparkdl.score"
    )
