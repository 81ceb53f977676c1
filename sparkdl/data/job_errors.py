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


@contextmanager
def own_errors() -> Iterator[None]:
    """Raise the :class:`DataError` that a task failed with, in its one line. Runs on the driver."""
    try:
        yield
    except _failures() as error:
        if own := _OWN.search(str(error)):
            raise DataError(own[1]) from None
        raise


@contextmanager
def explained(output: str) -> Iterator[None]:
    """Turn what tasks and the JVM failed with, while they wrote ``output``, into an error of ours. Runs on the driver.

    Raises :class:`DataError` as a task raised it, and :class:`StorageError` where a disk is full. Everything else
    passes.
    """
    try:
        with own_errors():
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
