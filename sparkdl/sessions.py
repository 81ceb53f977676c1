"""All differences between classic Spark and Spark Connect. Runs on the driver.

A classic session is in the driver's process, and has a SparkContext and a JVM. A session of Spark Connect sends
requests to a server, and has neither.
"""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sparkdl.errors import ConfigError

try:
    from py4j.protocol import Py4JError
except ImportError:  # only the package pyspark-client is installed, which has no JVM
    JVM_ERRORS: tuple[type[Exception], ...] = ()
else:
    JVM_ERRORS = (Py4JError,)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "JVM_ERRORS",
    "application_setting",
    "arrow_table",
    "cancel_tagged",
    "default_parallelism",
    "hurried",
    "is_gone",
    "is_local",
    "is_remote",
    "ml_context",
    "python_types",
    "require_classic",
    "ship_file",
    "tagged_jobs",
]

_LONG = 1 << 20
"""The rows of a range that is long enough for Spark's default number of partitions."""


def is_remote(spark: "SparkSession") -> bool:
    """Whether this is a session of Spark Connect."""
    return not hasattr(spark, "_jsc")


def require_classic(spark: "SparkSession", what: str) -> None:
    """Raise :class:`ConfigError` if this is a session of Spark Connect, which does not support ``what``."""
    if is_remote(spark):
        raise ConfigError(
            f"{what} needs classic Spark, but this is a session of Spark Connect; start the job by spark-submit on the"
            " cluster, or without SPARK_REMOTE"
        )


@contextmanager
def hurried(spark: "SparkSession") -> Iterator[None]:
    """Within this context, a server that does not answer is an error at once."""
    # By default, requests are retried for ten minutes.
    client: Any = spark.client  # type: ignore[attr-defined]
    with _hurrying:
        patient = client.get_retry_policies()
        client.set_retry_policies([])
        try:
            yield
        finally:
            client.set_retry_policies(patient)


_hurrying = threading.Lock()  # otherwise one thread would restore the value that another has set temporarily


def is_gone(spark: "SparkSession") -> bool:
    """Whether the application has ended, or its server does not answer."""
    from pyspark.errors import PySparkException

    with suppress(*JVM_ERRORS, PySparkException, OSError):  # the JVM itself has ended
        if not is_remote(spark):
            return bool(spark._jsc.sc().isStopped())
        with hurried(spark):
            spark.conf.get("spark.app.id", "")
        return False
    return True


def application_setting(spark: "SparkSession", name: str, default: str) -> str:
    """A setting with which the application was started; a classic session's own settings may have changed since."""
    # getConf() would copy all settings one by one, which takes a tenth of a second.
    conf = spark.conf if is_remote(spark) else spark.sparkContext._conf
    found = conf.get(name, None)  # no default: a server would check that it is of the setting's type
    return default if found is None else str(found)


def is_local(spark: "SparkSession") -> bool:
    """Whether driver and executors are one process."""
    master = application_setting(spark, "spark.master", "")
    return master == "local" or master.startswith("local[")


def default_parallelism(spark: "SparkSession") -> int:
    """Spark's default number of partitions: usually one per core of the executors."""
    if not is_remote(spark):
        return int(spark.sparkContext.defaultParallelism)
    from pyspark.sql import functions as sf

    partitions = spark.range(_LONG).select(sf.spark_partition_id().alias("partition"))
    return int(partitions.agg(sf.max("partition")).collect()[0][0]) + 1


def ml_context(spark: "SparkSession") -> Any:
    """The argument for readers and writers of ``pyspark.ml``: the SparkContext, or the session of Spark Connect."""
    return spark if is_remote(spark) else spark.sparkContext


def arrow_table(rows: "DataFrame") -> pa.Table:
    """All rows as an Arrow table, on the driver. ``collect`` would take fifty times its memory."""
    if hasattr(rows, "toArrow"):
        to_arrow: Any = rows.toArrow
        return to_arrow()
    from pyspark.sql.pandas.types import to_arrow_schema

    # In Spark 3.5 this function is private; its public user, `toPandas`, would not keep all types.
    collect: Any = rows._collect_as_arrow
    batches: list[pa.RecordBatch] = collect()
    return pa.Table.from_batches(batches, None if batches else to_arrow_schema(rows.schema))


@contextmanager
def tagged_jobs(spark: "SparkSession", tag: str, description: str) -> Iterator[None]:
    """Tag the jobs that this thread starts within this context. Classic Spark's web pages show the description."""
    if is_remote(spark):
        spark.addTag(tag)
        remove = spark.removeTag
    else:
        context = spark.sparkContext
        context.addJobTag(tag)  # a tag, so that the job group remains the caller's, who may cancel it
        context.setJobDescription(description)
        context.setInterruptOnCancel(True)
        remove = context.removeJobTag
    try:
        yield
    finally:
        remove(tag)


def ship_file(spark: "SparkSession", path: Path) -> str:
    """Let Spark ship a file to every executor, where ``SparkFiles.get`` finds it by its name. Returns that name."""
    if is_remote(spark):
        spark.addArtifact(str(path), file=True)
    else:
        spark.sparkContext.addFile(path.as_uri())
    return path.name


def cancel_tagged(spark: "SparkSession", tag: str) -> None:
    """Cancel the jobs with this tag that have already started."""
    if is_remote(spark):
        spark.interruptTag(tag)
    else:
        spark.sparkContext.cancelJobsWithTag(tag)


def python_types(rows: "DataFrame") -> list[str]:
    """The Python classes among the columns' types, as Spark names them; Spark Connect does not report their names.

    Reading ``rows.schema`` is avoided, because it imports or even unpickles classes of user-defined types.
    """
    if not is_remote(rows.sparkSession):
        return re.findall(r'"pyClass":"([^"]*)"', rows._jdf.schema().json())
    client: Any = rows.sparkSession.client  # type: ignore[attr-defined]
    plan: Any = rows._plan  # type: ignore[operator]
    tree = client._analyze("tree_string", plan=plan.to_proto(client)).tree_string
    return re.findall(r": (pythonuserdefined) \(", tree)
