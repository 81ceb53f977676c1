"""Predictions on storage: all of them, or none. Runs on the driver; rows are scored and written by tasks."""

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - what Spark's own documentation calls it

from sparkdl.data.job_errors import explained
from sparkdl.data.preparing.staging import Staging, staging
from sparkdl.errors import DataError
from sparkdl.storage import join, local_path, spark_url, write_file

__all__ = ["WrittenPredictions", "check_output", "write_predictions"]

_SEAL = "_SUCCESS"
"""What Spark leaves in a folder once all of its tasks are committed."""


@dataclass(frozen=True)
class WrittenPredictions:
    """What was written."""

    folder: str
    rows: int
    failed: int
    """Rows without a prediction; their column ``error`` says why."""


def write_predictions(scored: DataFrame, output: str) -> WrittenPredictions:
    """Write what :func:`sparkdl.score` gave as Parquet, through Spark's committer.

    On a local or shared file system the folder takes its place in one step. On other storage Spark's committer is what
    there is: ``_SUCCESS`` is written last. Raises :class:`~sparkdl.errors.DatasetError` before anything is scored when
    there is something in ``output``, and when a disk is full; :class:`DataError` as the tasks found it.
    """
    with explained(output):
        if _is_local(output):
            with staging(output, seal=_SEAL) as folder:
                scored.write.mode("append").parquet(spark_url(folder.path))
                # Other committers than Spark's own may have left it out.
                write_file(join(folder.path, _SEAL), b"")
                if not folder.publish():
                    raise DataError(f"another job wrote to {output} meanwhile; nothing was changed there")
        else:
            scored.write.mode("error").parquet(output)  # Spark looks before it scores
        written = scored.sparkSession.read.parquet(spark_url(output, literal=True))
        failed = F.count(F.when(F.col("prediction").isNull(), 1))
        found = written.agg(F.count("*").alias("rows"), failed.alias("failed")).collect()[0]
    return WrittenPredictions(output, found["rows"], found["failed"])


def check_output(output: str) -> None:
    """Raise what :func:`write_predictions` would raise before anything is scored, as far as this machine can look."""
    if _is_local(output):
        Staging(output, seal=_SEAL).check()


def _is_local(output: str) -> bool:
    return local_path(output) is not None
