"""Get the running Spark session, or start the embedded one."""

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
    # Otherwise Spark starts a second daemon, with all that it loads, for functions that SQL calls.
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": False,
}
"""What the embedded session is started with, unless ``cluster.options`` says otherwise."""

SHUFFLED_PARTS_PER_SLOT = 4
"""Parts of a shuffle, for each slot of the embedded session. Spark's own default, 200 in all, is meant for clusters: to
start so many tasks took half of the time of preparing 100,000 texts on two slots."""


def get_session(settings: Cluster | None = None, *, only_data: bool = False) -> SparkSession:
    """The running session, else that of ``SPARK_REMOTE`` or ``spark-submit``, else an embedded one. Runs on the driver.

    ``settings.options`` apply to the embedded session only. The process from which its Python workers are forked (see
    :mod:`sparkdl.daemon`) starts with it, and loads its modules in the background; with ``only_data``, it does not load
    PyTorch. Raises :class:`~sparkdl.errors.ConfigError` when there is no Spark here or no Java for it, and
    :class:`~sparkdl.errors.ClusterError` when the Spark Connect server that ``SPARK_REMOTE`` names does not answer, or
    the cluster does not start the application.
    """
    settings = settings or Cluster()
    if running := SparkSession.getActiveSession():
        return running
    if REMOTE in os.environ:
        return connected()
    builder = SparkSession.builder
    if _context_runs():  # a session is active in the thread that made it; options would change it
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
    # Nobody waits for this task: what workers are forked from takes seconds to load, and so does what the driver needs.
    session.sparkContext.parallelize([None], 1).map(type)._jrdd.collectAsync()
    return session


def _object_store() -> dict[str, str | int | float | bool]:
    """What leads Hadoop's client of S3 to the store that Python's clients take: it does not know their variables."""
    address = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if not address:
        return {}
    # A store of one's own seldom has a host name for each bucket.
    return {"spark.hadoop.fs.s3a.endpoint": address, "spark.hadoop.fs.s3a.path.style.access": True}


def _context_runs() -> bool:
    """Whether there is a SparkContext. Raises :class:`~sparkdl.errors.ConfigError` where none could ever be."""
    try:
        from pyspark import SparkContext
    except ImportError:
        raise ConfigError(
            f"the package pyspark-client starts no Spark of its own: set {REMOTE} to the address of a Spark Connect"
            " server, such as sc://host:15002, or install pyspark instead"
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
