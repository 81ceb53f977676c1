"""Gets the running Spark session, or starts an embedded one."""

import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from sparkdl.cluster.connect import REMOTE, connected
from sparkdl.cluster.interrupts import cancel_on_interrupt, held_interrupts
from sparkdl.cluster.start_errors import start_error
from sparkdl.errors import ConfigError
from sparkdl.java import ensure_java
from sparkdl.sessions import JVM_ERRORS
from sparkdl.settings import Cluster

__all__ = ["EMBEDDED_OPTIONS", "get_session"]

LOGGING = Path(__file__).with_name("log4j2.properties")

EMBEDDED_OPTIONS: dict[str, str | int | float | bool] = {
    "spark.app.name": "sparkdl",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={LOGGING.as_uri()}",
    "spark.ui.enabled": False,
    "spark.ui.showConsoleProgress": False,
    "spark.sql.execution.arrow.pyspark.enabled": True,
    "spark.python.daemon.module": "sparkdl.daemon",
    # Otherwise Spark starts a second daemon for Python functions in SQL, which imports everything again.
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": False,
}
"""The options of the embedded session, which ``cluster.options`` may override."""

SHUFFLED_PARTS_PER_SLOT = 4
"""Partitions of a shuffle per slot of the embedded session. Spark's default of 200 in total is meant for clusters:
starting so many tasks took half the time of preparing 100,000 texts on two slots."""


def get_session(settings: Cluster | None = None, *, only_data: bool = False) -> SparkSession:
    """The running session, else that of ``SPARK_REMOTE`` or ``spark-submit``, else an embedded one. Runs on the driver.

    ``settings.options`` apply to the embedded session only. The process from which its Python workers are forked
    (:mod:`sparkdl.daemon`) starts with it, and imports its modules in the background; with ``only_data``, it does not
    import PyTorch. Raises :class:`~sparkdl.errors.ConfigError` if Spark or a suitable Java is not installed, and
    :class:`~sparkdl.errors.ClusterError` if the Spark Connect server that ``SPARK_REMOTE`` names does not answer, or
    the cluster does not start the application.
    """
    settings = settings or Cluster()
    if running := SparkSession.getActiveSession():
        return running
    if REMOTE in os.environ:
        return connected()
    builder = SparkSession.builder
    if _context_runs():  # another thread has made the session; setting options here would change it
        return builder.getOrCreate()
    if only_data:
        builder = builder.config("spark.executorEnv.SPARKDL_TASKS", "data")
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit has started the JVM and knows the cluster
        return _started(builder)
    ensure_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = builder.master(f"local[{settings.embedded_slots}]")
    parts = {"spark.sql.shuffle.partitions": SHUFFLED_PARTS_PER_SLOT * settings.embedded_slots}
    for key, value in (EMBEDDED_OPTIONS | parts | _object_store() | settings.options).items():
        builder = builder.config(key, value)
    session = _started(builder)
    # A task that nobody waits for: it starts the daemon, which imports for seconds while the driver imports, too.
    session.sparkContext.parallelize([None], 1).map(type)._jrdd.collectAsync()
    return session


def _object_store() -> dict[str, str | int | float | bool]:
    """Options for Hadoop's S3 client to use the same store as Python's clients, whose variables it does not read."""
    address = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if not address:
        return {}
    # A self-hosted store seldom has a host name per bucket.
    return {"spark.hadoop.fs.s3a.endpoint": address, "spark.hadoop.fs.s3a.path.style.access": True}


def _context_runs() -> bool:
    """Whether there is a SparkContext. Raises :class:`~sparkdl.errors.ConfigError` if PySpark cannot start one."""
    try:
        from pyspark import SparkContext
    except ImportError:
        raise ConfigError(
            f"the package pyspark-client cannot start Spark: set {REMOTE} to the address of a Spark Connect server,"
            " such as sc://host:15002, or install pyspark instead"
        ) from None
    return SparkContext._active_spark_context is not None


def _started(builder: Any) -> SparkSession:
    with held_interrupts():
        try:
            session: SparkSession = builder.getOrCreate()
        except JVM_ERRORS as error:
            raise start_error(error) from None
    cancel_on_interrupt(session)
    return session
