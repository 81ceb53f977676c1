"""Translates the errors of failed Spark jobs to errors that say what to do."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from sparkdl.errors import DataError, StorageError
from sparkdl.sessions import JVM_ERRORS
from sparkdl.storage import scheme

__all__ = ["explained", "own_errors", "spark_failures"]

_OWN = re.compile(r"sparkdl\.errors\.DataError: (.*)")
_FULL = re.compile(r"No space left on device|Disk quota exceeded|File too large")
"""The operating system's texts for ENOSPC, EDQUOT and EFBIG, in errors of Python and Java."""
_NO_BUCKET = re.compile(r"UnknownStoreException|NoSuchBucket")
_REFUSED = re.compile(r"AccessDeniedException: \w+://|NoAuthWithAWSException|Status Code: 40[13]\b")
"""Texts of Hadoop's client for S3: names of exceptions, and Amazon's answers."""
_NO_CREDENTIALS = re.compile(r"No AWS Credentials provided|Unable to load (AWS )?credentials")
_NO_NAME_NODE = re.compile(
    r"ConnectException: Call From|UnknownHostException: [\w.-]+|SafeModeException|StandbyException"
)
_PERMISSION = re.compile(r"AccessControlException: Permission denied: user=([^,\s]+), access=(\w+)")
"""The text of Hadoop's client for HDFS."""
_NO_FILE_SYSTEM = re.compile(r"No FileSystem for scheme|Class org\.apache\.hadoop\.fs\.\S*FileSystem not found")


@contextmanager
def own_errors(place: str) -> Iterator[None]:
    """Translates errors of tasks and the JVM, while they use ``place``, to errors of ours. Runs on the driver.

    Raises :class:`DataError` with the one line of the error that a task raised, and :class:`StorageError` for a scheme
    that Spark does not know, a bucket that does not exist, and if Spark has no access. Other errors are unchanged.
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
    """Like :func:`own_errors`, for a place that is written to; a full disk is a :class:`StorageError`, too."""
    try:
        with own_errors(output):
            yield
    except spark_failures() as error:
        if full := _FULL.search(str(error)):
            raise StorageError(
                f"cannot write {output}: {full[0].lower()}. Nothing was left there. Make room, or choose another "
                "`output`. Spark's temporary files (`spark.local.dir`) may also be the cause."
            ) from None
        raise


def _unreachable(place: str, said: str) -> str | None:
    """The reason why Spark cannot reach a place, and what to do; None if its error is about something else."""
    if _NO_FILE_SYSTEM.search(said):
        return (
            f"it has no file system for {scheme(place)}://. Add Hadoop's package for it to `spark.jars.packages` (for"
            " s3a:// `hadoop-aws`, for abfs:// `hadoop-azure`, in Hadoop's version), or choose another place."
        )
    if _NO_BUCKET.search(said):
        return (
            "there is no such bucket. Create it, or correct its name or the store's address in Hadoop's settings"
            " (`spark.hadoop.fs.s3a.endpoint`)."
        )
    if _REFUSED.search(said):
        reason = "it has no credentials" if _NO_CREDENTIALS.search(said) else "access is denied"
        return (
            f"{reason}. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY on driver and executors, or"
            " `spark.hadoop.fs.s3a.access.key` and `.secret.key`, to those of an account that may read and write there."
        )
    if found := _PERMISSION.search(said):
        user, access = found.groups()
        return f"the user {user} has no right to {access.lower()} there. Ask for it, or choose another place."
    if _NO_NAME_NODE.search(said):
        return "its name node does not answer: correct its host and port, or try again when it has started."
    return None


def spark_failures() -> tuple[type[Exception], ...]:
    """The exceptions of failed Spark jobs, with and without Spark Connect."""
    from pyspark.errors import PySparkException

    return (OSError, PySparkException, *JVM_ERRORS)
