"""What a failed Spark job means to the person who started it."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from sparkdl.errors import DataError, StorageError
from sparkdl.sessions import JVM_ERRORS

__all__ = ["explained"]

_OWN = re.compile(r"sparkdl\.errors\.DataError: (.*)")
_FULL = re.compile(r"No space left on device|Disk quota exceeded|File too large")
"""What the operating system says (ENOSPC, EDQUOT, EFBIG), in Python's errors and in Java's."""


@contextmanager
def explained(output: str) -> Iterator[None]:
    """Turn what tasks and the JVM failed with, while they wrote ``output``, into an error of ours. Runs on the driver.

    Raises :class:`DataError` as a task raised it, and :class:`StorageError` where a disk is full. Everything else
    passes.
    """
    from pyspark.errors import PySparkException

    failures: tuple[type[Exception], ...] = (OSError, PySparkException, *JVM_ERRORS)
    try:
        yield
    except failures as error:
        text = str(error)
        if own := _OWN.search(text):
            raise DataError(own[1]) from None
        if full := _FULL.search(text):
            raise StorageError(
                f"cannot write {output}: {full[0].lower()}. Nothing was left there. Make room, or choose another "
                "`output`; Spark's temporary files (`spark.local.dir`) may be what is too large, too."
            ) from None
        raise
