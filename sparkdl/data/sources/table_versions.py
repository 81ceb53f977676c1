"""Chooses the version of a table from which rows are read. Runs on the driver.

A table of Delta Lake or Iceberg has a version for each commit. Rows are read several times, always from the same
version, even if somebody writes to the table meanwhile. The dataset's card states the version.
"""

from contextlib import suppress
from typing import TYPE_CHECKING

from sparkdl.data.card_parts import TableVersion
from sparkdl.data.sql import identifier
from sparkdl.settings import Source
from sparkdl.storage import spark_url

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["at_version"]

_DELTA_VERSION, _DELTA_TIME = "versionasof", "timestampasof"
_ICEBERG_SNAPSHOT, _ICEBERG_TIME = "snapshot-id", "as-of-timestamp"
_CHOOSE = {_DELTA_VERSION, _DELTA_TIME, _ICEBERG_SNAPSHOT, _ICEBERG_TIME, "branch", "tag"}
"""Options of readers that choose a version, in lower case; Spark ignores case."""


def at_version(source: Source, spark: "SparkSession") -> tuple[Source, TableVersion | None]:
    """The source at a fixed version, and that version: the newest one, or the one that its options choose.

    The source is unchanged, and the version None, if it is not a table of Delta Lake or Iceberg, for Iceberg's branches
    and tags, and if Spark cannot determine the version; reading the source then raises the error.
    """
    from pyspark.errors import PySparkException

    options = {name.lower(): str(value) for name, value in source.options.items()}
    with suppress(PySparkException):
        format, table = _table(source, spark)
        match format:
            case "delta":
                version, option = _of_delta(table, options, spark), "versionAsOf"
            case "iceberg":
                version, option = _of_iceberg(table, options, spark), _ICEBERG_SNAPSHOT
            case _:
                return source, None
        if version is not None:
            found = TableVersion(format=format, table=str(source.path), version=version)
            chosen = {} if _CHOOSE & options.keys() else {option: version}
            return source.model_copy(update={"options": source.options | chosen}), found
    return source, None


def _table(source: Source, spark: "SparkSession") -> tuple[str, str]:
    """The format of a table, and its name in SQL."""
    path = str(source.path)
    if source.format == "delta":
        return "delta", f"delta.{identifier(spark_url(path, literal=True))}"
    if source.format == "table":
        told = spark.sql(f"DESCRIBE TABLE EXTENDED {path}").where("col_name = 'Provider'").collect()
        return (told[0]["data_type"].lower() if told else ""), path
    return source.format, path


def _of_delta(table: str, options: dict[str, str], spark: "SparkSession") -> int | None:
    if _DELTA_VERSION in options:
        return int(options[_DELTA_VERSION])
    from pyspark.sql import functions as sf

    history = spark.sql(f"DESCRIBE HISTORY {table}")
    if _DELTA_TIME in options:
        history = history.where(sf.col("timestamp") <= sf.lit(options[_DELTA_TIME]).cast("timestamp"))
    (newest,) = history.agg(sf.max("version")).collect()
    return None if newest[0] is None else int(newest[0])


def _of_iceberg(table: str, options: dict[str, str], spark: "SparkSession") -> int | None:
    if _ICEBERG_SNAPSHOT in options:
        return int(options[_ICEBERG_SNAPSHOT])
    if {"branch", "tag"} & options.keys():
        return None
    from pyspark.sql import functions as sf

    history = spark.sql(f"SELECT * FROM {table}.history WHERE is_current_ancestor")
    if _ICEBERG_TIME in options:
        history = history.where(sf.col("made_current_at") <= sf.timestamp_millis(sf.lit(int(options[_ICEBERG_TIME]))))
    newest = history.orderBy(sf.desc("made_current_at")).limit(1).collect()
    return int(newest[0]["snapshot_id"]) if newest else None
