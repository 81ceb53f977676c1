"""Writes predictions to storage: all of them or none. Runs on the driver; Spark tasks score and write the rows."""

import re
from dataclasses import dataclass

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - what Spark's own documentation calls it

from sparkdl.data.job_errors import explained
from sparkdl.data.preparing.staging import Staging, staging
from sparkdl.data.sources.format_packages import known_format
from sparkdl.data.sources.table_formats import is_delta_table
from sparkdl.data.sql import identifier
from sparkdl.errors import ConfigError, DataError, DatasetError
from sparkdl.scoring.merging import merge, present_rows
from sparkdl.settings.source import TABLE_FORMATS
from sparkdl.storage import join, local_path, spark_url, write_file

__all__ = [
    "WrittenPredictions",
    "add_predictions",
    "check_output",
    "existing_table",
    "failed_rows",
    "write_predictions",
]

_SEAL = "_SUCCESS"
"""The file that Spark writes to a folder after all tasks have committed."""
_TABLE = re.compile(r"(\w+|`[^`]+`)(\.(\w+|`[^`]+`))*")


@dataclass(frozen=True)
class WrittenPredictions:
    """Where predictions were written, and how many."""

    folder: str
    """The folder or the name of the table."""
    rows: int
    """All rows, also those without a prediction."""
    failed: int
    """Rows without a prediction; their column ``error`` has the reason."""


def write_predictions(
    scored: DataFrame, output: str, *, format: str = "parquet", mode: str = "error", key: str | None = None
) -> WrittenPredictions:
    """Write the result of :func:`sparkdl.score`, through Spark's committer or that of the table format.

    ``format``, ``mode`` and ``key`` are those of the section ``score``; with ``table`` and ``iceberg``, ``output``
    names a table of the catalog. On a local or shared file system, a new folder is written elsewhere and renamed. On
    other storage, Spark's committer writes the files, and ``_SUCCESS`` last. Rows for an existing table are scored
    once, and Spark caches them on disk until they are written.

    Raises :class:`~sparkdl.errors.DatasetError` before anything is scored if ``output`` exists and ``mode`` is
    ``error``, and later if a disk is full; :class:`DataError` if a task cannot score a row, and for a format that Spark
    does not know.
    """
    spark = scored.sparkSession
    with explained(output), known_format(format, spark.version):
        if table := existing_table(spark, output, format):
            if mode == "error":
                raise DatasetError(
                    f"the table {output} already exists; set `mode` to `append` or `merge`, or choose another `output`"
                )
            return add_predictions(scored, output, format, table, key if mode == "merge" else None)
        scored = present_rows(scored)
        if format in TABLE_FORMATS:
            writer = scored.write if format == "table" else scored.write.format(format)
            writer.mode("error").saveAsTable(output)
            written = spark.read.table(output)
        else:
            _write_new(scored, output, format)
            written = spark.read.format(format).load(spark_url(output, literal=True))
        return _counted(written, output)


def check_output(output: str, *, format: str = "parquet", mode: str = "error") -> None:
    """Raise the error of :func:`write_predictions` for an existing ``output`` on this machine's file system."""
    if mode == "error" and format not in TABLE_FORMATS and _is_local(output):
        Staging(output, seal=_SEAL).check()


def _write_new(scored: DataFrame, output: str, format: str) -> None:
    if not _is_local(output):
        scored.write.format(format).mode("error").save(output)  # Spark checks the folder before it scores
        return
    with staging(output, seal=_SEAL) as folder:
        scored.write.format(format).mode("append").save(spark_url(folder.path))
        # Committers other than Spark's own may not write this file.
        write_file(join(folder.path, _SEAL), b"")
        if not folder.publish():
            raise DataError(
                f"another job has written to {output} meanwhile, which was left as it is; choose another `output`"
            )


def existing_table(spark: SparkSession, output: str, format: str) -> str | None:
    """The SQL name of the output table, if it exists. Raises :class:`ConfigError` for an invalid name of a table."""
    if format == "delta":
        return f"delta.{identifier(spark_url(output))}" if is_delta_table(output) else None
    if format not in TABLE_FORMATS:
        return None
    if not _TABLE.fullmatch(output):
        raise ConfigError(f"score.output is {output!r}, which is not the name of a table; write catalog.schema.table")
    return output if spark.catalog.tableExists(output) else None


def add_predictions(scored: DataFrame, output: str, format: str, table: str, key: str | None) -> WrittenPredictions:
    """Add rows to an existing table, in one commit; with a ``key``, they replace the rows with the same key."""
    rows = scored.persist(StorageLevel.DISK_ONLY)
    try:
        found = _counted(present_rows(rows), output)
        if key is not None:
            merge(rows, table, key)
        elif format == "delta":
            rows.write.format(format).mode("append").save(spark_url(output))
        else:
            rows.write.mode("append").saveAsTable(table)
        return found
    finally:
        rows.unpersist()


def failed_rows(rows: DataFrame) -> Column:
    """How many rows have no prediction."""
    return F.count(F.when(F.col("prediction").isNull(), 1)) if "prediction" in rows.columns else F.lit(0)


def _counted(rows: DataFrame, output: str) -> WrittenPredictions:
    found = rows.agg(F.count("*").alias("rows"), failed_rows(rows).alias("failed")).collect()[0]
    return WrittenPredictions(output, found["rows"], found["failed"])


def _is_local(output: str) -> bool:
    return local_path(output) is not None
