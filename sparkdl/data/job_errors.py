"""What a failed Spark job means to the person who started it."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from sparkdl.errors import DataError, StorageError
from sparkdl.sessions import JVM_ERRORS

__all__ = ["explained", "own_errors"]

_OWN = re.compile(r"sparkdl\.errors\.DataError: (.*)")
_FULL = re.compile(r"No space left on device|Disk quota exceeded|File too large")
"""What the operating system says (ENOSPC, EDQUOT, EFBIG), in Python's errors and in Java's."""


_NO_SCHEME = re.compile(r"No FileSystem for scheme \"?(\w+)")


@contextmanager
def own_errors(place: str) -> Iterator[None]:
    """Turn what tasks and the JVM failed with, while they used ``place``, into an error of ours. Runs on the driver.

    Raises :class:`DataError` as a task raised it, in its one line, and :class:`StorageError` for a scheme that Spark
    does not know. Everything else passes.
    """
    try:
        yield
    except _failures() as error:
        if own := _OWN.search(str(error)):
            raise DataError(own[1]) from None
        if unknown := _NO_SCHEME.search(str(error)):
            raise StorageError(
                f"Spark cannot reach {place}: it knows no file system for {unknown[1]}://. Add Hadoop's package for it"
                " to `spark.jars.packages` (for s3a://, `hadoop-aws` in Hadoop's version), or choose another place."
            ) from None
        raise


@contextmanager
def explained(output: str) -> Iterator[None]:
    """As :func:`own_errors` for a place that is written, which may be full: that is a :class:`StorageError`, too."""
    try:
        with own_errors(output):
            yield
    except _failures() as error:
        if full := _FULL.search(str(error)):
            raise StorageError(
                f"cannot write {output}: {full[0].lower()}. Nothing was left there. Make room, or choose another "
                "`output`; Spark's temporary files (`spark.local.dir`) may be what is too large, too."
            ) from None
        raise


def _failures() -> tuple[type[Exception], ...]:
    from pyspark.errors import PySparkException

    return (OSError, PySparkException, *JVM_ERRORS)
