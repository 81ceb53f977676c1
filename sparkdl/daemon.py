"""The process that Spark's Python workers are forked from, with the slow part of their start done once.

Runs on executors, and in the embedded Spark; ``spark.python.daemon.module=sparkdl.daemon`` names it. Without it
everything works, only later: each worker loads PyTorch for itself, which takes seconds, and so does each that takes the
place of a worker that died. A job whose tasks need no PyTorch says so by ``spark.executorEnv.SPARKDL_TASKS=data``.
"""

import gc
import importlib
import os
import sys
import zipimport
from contextlib import suppress
from pathlib import Path

from sparkdl.environment import HUGE_PAGES

__all__ = ["keep_unchanged_archives", "main"]

OF_DATA = ("sparkdl.data.preparing.write",)
"""What tasks run that prepare rows."""
OF_NETWORKS = (
    "sparkdl.training.loop",
    "sparkdl.scoring.task",
    "sparkdl.extreme.tasks",
    "horovod.torch",
    "torch._dynamo",  # which making an optimizer imports
)
"""What ranks run, and tasks that train and score. Importing it touches no GPU and starts no threads but those that
survive a fork (OpenBLAS and jemalloc start theirs again), so that the workers can share it."""


def main() -> None:
    """Import what workers need and fork them as Spark asks for them. Ends with the executor."""
    if sys.version_info < (3, 12):
        keep_unchanged_archives()
    os.environ.update(HUGE_PAGES | os.environ)
    for name in OF_DATA if os.environ.get("SPARKDL_TASKS") == "data" else OF_DATA + OF_NETWORKS:
        with suppress(Exception):  # a worker that needs it says what is wrong
            importlib.import_module(name)
    from pyspark.daemon import manager

    importlib.invalidate_caches()  # so that the workers know each archive as it is now
    gc.freeze()  # what is shared stays shared: after every task, a worker's collector would go through all of it
    manager()  # type: ignore[no-untyped-call]


def keep_unchanged_archives() -> None:
    """Let Python read a zip archive on its path anew only when the file has changed.

    Spark's workers invalidate the caches of imports before every task (SPARK-54744), and Python 3.11 then reads
    PySpark's archives again for each package in them: a tenth of a second a task. Python 3.12 does it when a module is
    looked for (python/cpython#103200).
    """
    read_anew = zipimport.zipimporter.invalidate_caches
    seen: dict[zipimport.zipimporter, tuple[int, int]] = {}

    def invalidate_caches(importer: zipimport.zipimporter) -> None:
        found = Path(importer.archive).stat() if Path(importer.archive).exists() else None
        state = (found.st_mtime_ns, found.st_size) if found else (0, 0)
        if seen.get(importer) != state:
            read_anew(importer)
            seen[importer] = state

    zipimport.zipimporter.invalidate_caches = invalidate_caches  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    main()
