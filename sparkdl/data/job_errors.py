"""What a failed Spark job means to the person who started it."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from sparkdl.errors import DataError, StorageError
from sparkdl.sessions import JVM_ERRORS
from sparkdl.storage import scheme

__all__ = ["explained", "own_errors", "spark_failures"]

_OWN = re.compile(r"sparkdl\.errors\.DataError: (.*)")
_FULL = re.compile(r"No space left on device|Disk quota exceeded|File too large")
"""What the operating system says (ENOSPC, EDQUOT, EFBIG), in Python's errors and in Java's."""
_NO_BUCKET = re.compile(r"UnknownStoreException|NoSuchBucket")
_REFUSED = re.compile(r"AccessDeniedException: \w+://|NoAuthWithAWSException|Status Code: 40[13]\b")
"""What Hadoop's client for S3 says, in its exceptions' names and in Amazon's answers."""
_NO_CREDENTIALS = re.compile(r"No AWS Credentials provided|Unable to load (AWS )?credentials")
_NO_NAME_NODE = re.compile(
    r"ConnectException: Call From|UnknownHostException: [\w.-]+|SafeModeException|StandbyException"
)
_PERMISSION = re.compile(r"AccessControlException: Permission denied: user=([^,\s]+), access=(\w+)")
"""What Hadoop's client for HDFS says."""
_NO_FILE_SYSTEM = re.compile(r"No FileSystem for scheme|Class org\.apache\.hadoop\.fs\.\S*FileSystem not found")


@contextmanager
def own_errors(place: str) -> Iterator[None]:
    """Turn what tasks and the JVM failed with, while they used ``place``, into an error of ours. Runs on the driver.

    Raises :class:`DataError` as a task raised it, in its one line, and :class:`StorageError` for a scheme that Spark
    does not know, a bucket that does not exist, and where Spark is not let in. Everything else passes.
    """
    try:
        yield
    except spark_failures() as error:
        if own := _OWN.search(str(error)):
            raise DataError(own[1]) from None
        if reason := _unreachable(place, str(error)):
            raise StorageError(f"Spark cannot reach {place}: {reason}") from None
        raise


@contextmanager
def explained(output: str) -> Iterator[None]:
    """As :func:`own_errors` for a place that is written, which may be full: that is a :class:`StorageError`, too."""
    try:
        with own_errors(output):
            yield
    except spark_failures() as error:
        if full := _FULL.search(str(error)):
            raise StorageError(
                f"cannot write {output}: {full[0].lower()}. Nothing was left there. Make room, or choose another "
                "`output`; Spark's temporary files (`spark.local.dir`) may be what is too large, too."
            ) from None
        raise


def _unreachable(place: str, said: str) -> str | None:
    """Why Spark cannot reach a place, and what to do, where that is what it says."""
    if _NO_FILE_SYSTEM.search(said):
        return (
            f"it knows no file system for {scheme(place)}://. Add Hadoop's package for it to `spark.jars.packages` (for"
            " s3a:// `hadoop-aws`, for abfs:// `hadoop-azure`, in Hadoop's version), or choose another place."
        )
    if _NO_BUCKET.search(said):
        return (
            "there is no such bucket. Make it, or correct its name or Hadoop's address of the store"
            " (`spark.hadoop.fs.s3a.endpoint`)."
        )
    if _REFUSED.search(said):
        reason = "it has no credentials" if _NO_CREDENTIALS.search(said) else "access is denied"
        return (
            f"{reason}. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY where driver and executors run, or"
            " `spark.hadoop.fs.s3a.access.key` and `.secret.key`, of an account that may read and write there."
        )
    if found := _PERMISSION.search(said):
        user, access = found.groups()
        return f"the user {user} has no right to {access.lower()} there. Ask for it, or choose another place."
    if _NO_NAME_NODE.search(said):
        return (
            "its name node does not answer, or does not yet: correct its host and port, or try again when it is there."
        )
    return None


def spark_failures() -> tuple[type[Exception], ...]:
    """What a job of Spark's can fail with, with and without Spark Connect."""
    from pyspark.errors import PySparkException

    return (OSError, PySparkException, *JVM_ERRORS)
