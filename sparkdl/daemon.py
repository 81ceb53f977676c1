"""The process that Spark's Python workers are forked from, with the slow part of their start done once.

Runs in the embedded Spark, and on executors where ``spark.python.daemon.module=sparkdl.daemon`` asks for it. Without
it everything works, only later: each worker loads PyTorch for itself, which takes seconds, and so does each that takes
the place of a worker that died. A job whose tasks need no PyTorch says so by ``spark.executorEnv.SPARKDL_TASKS=data``.
"""

import gc
import os
import re
import sys
from collections.abc import Callable
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from sparkdl.forks import preload

__all__ = ["main"]

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

SPARKS_ZIP = re.compile(r"/python/lib/(pyspark|py4j-[^/]*)\.zip$")


def main() -> None:
    """Import what workers need and fork them as Spark asks for them. Ends with the executor."""
    _leave_zips()
    preload(OF_DATA if os.environ.get("SPARKDL_TASKS") == "data" else OF_DATA + OF_NETWORKS)
    from pyspark import daemon

    daemon.worker = _ending_silently(daemon.worker)
    gc.freeze()  # what is shared stays shared: after every task, a worker's collector would go through all of it
    daemon.manager()  # type: ignore[no-untyped-call]


def _leave_zips() -> None:
    """Import PySpark from its files where the zips of Spark on the path are of the same installation.

    Before every task, a worker has Python look anew at what is on the path, and Python 3.11 reads the directory of each
    zip for that, which takes longer than the rest of a short task.
    """
    zips = {entry: Path(entry).resolve() for entry in sys.path if SPARKS_ZIP.search(entry)}
    others = [entry for entry in sys.path if entry not in zips]
    installed = PathFinder.find_spec("pyspark", others)
    folders = (installed and installed.submodule_search_locations) or []
    same = any(Path(folder, "python/lib/pyspark.zip").resolve() in zips.values() for folder in folders)
    if same and PathFinder.find_spec("py4j", others):
        sys.path[:] = others
        sys.path_importer_cache.clear()


def _ending_silently(worker: Callable[..., int]) -> Callable[..., int]:
    """Spark closes a worker's connection when it needs no more rows, of which Spark 4's worker prints a traceback."""

    def work(*args: Any) -> int:
        try:
            return worker(*args)
        except ConnectionError:
            os._exit(1)

    return work


if __name__ == "__main__":
    main()
