"""Formats for which Spark needs an additional package. Runs on the driver."""

import difflib
import re
from collections.abc import Iterator
from contextlib import contextmanager

from sparkdl.data.job_errors import spark_failures
from sparkdl.errors import DataError
from sparkdl.settings.source import FILE_FORMATS, OWN_FORMATS, TABLE_FORMATS
from sparkdl.stack import scala_of

__all__ = ["known_format"]

_NOT_FOUND = re.compile(r"DATA_SOURCE_NOT_FOUND|Failed to find data source|ClassNotFoundException: \S*DefaultSource")
_NO_DRIVER = re.compile(r"No suitable driver")
_PACKAGES = {
    "avro": "org.apache.spark:spark-avro_{scala}:{spark}",
    "bigquery": "com.google.cloud.spark:spark-bigquery-with-dependencies_{scala}",
    "cosmos.oltp": "com.azure.cosmos.spark:azure-cosmos-spark",
    "delta": "io.delta:delta-spark_{scala}",
    "excel": "com.crealytics:spark-excel_{scala}",
    "hudi": "org.apache.hudi:hudi-spark{minor}-bundle_{scala}",
    "iceberg": "org.apache.iceberg:iceberg-spark-runtime-{minor}_{scala}",
    "kafka": "org.apache.spark:spark-sql-kafka-0-10_{scala}:{spark}",
    "mongodb": "org.mongodb.spark:mongo-spark-connector_{scala}",
    "org.apache.spark.sql.cassandra": "com.datastax.spark:spark-cassandra-connector_{scala}",
    "redis": "com.redislabs:spark-redis_{scala}",
    "snowflake": "net.snowflake:spark-snowflake_{scala}",
    "xml": "com.databricks:spark-xml_{scala}",
}
"""For each format, the Maven coordinates of its package, with a version if that is Spark's own."""
_BUILT_IN = ("csv", "jdbc", "json", "libsvm", "orc", "parquet", "text")


@contextmanager
def known_format(name: str, spark: str) -> Iterator[None]:
    """Translates the error of this Spark version about an unknown format to a :class:`DataError` with its package.

    Other errors are unchanged.
    """
    try:
        yield
    except spark_failures() as error:
        if missing := _what_is_missing(name, str(error), spark):
            raise DataError(missing) from None
        raise


def _what_is_missing(name: str, said: str, spark: str) -> str | None:
    """The package to add to this version of Spark for a format; None if the error is about something else."""
    if name == "jdbc" and _NO_DRIVER.search(said):
        return (
            "Spark has no driver for this database: add its package to the Spark session (spark-submit --packages; for"
            " PostgreSQL, org.postgresql:postgresql:...)"
        )
    if not _NOT_FOUND.search(said):
        return None
    if package := _PACKAGES.get(name.lower()):
        minor = ".".join(spark.split(".")[:2])
        coordinates = package.format(scala=scala_of(spark), spark=spark, minor=minor)
        version = "" if spark in coordinates else ":VERSION"
        return (
            f"Spark needs a package for the format {name!r}: start the Spark session with it (spark-submit"
            f" --packages {coordinates}{version})"
        )
    near = difflib.get_close_matches(name, {*_PACKAGES, *_BUILT_IN, *FILE_FORMATS, *OWN_FORMATS, *TABLE_FORMATS}, n=1)
    meant = f"; did you mean {near[0]!r}?" if near else ", or correct its name"
    return f"Spark does not know the format {name!r}: start the Spark session with the package that contains it{meant}"
