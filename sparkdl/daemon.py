"""The process from which Spark's Python workers are forked. It imports PyTorch once for all of them.

Runs in the embedded Spark, and on executors with ``spark.python.daemon.module=sparkdl.daemon``. Without it everything
works, but each new Python worker first imports PyTorch, which takes seconds. A job whose tasks do not need PyTorch sets
``spark.executorEnv.SPARKDL_TASKS=data``.
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
"""The modules for tasks that prepare rows."""
OF_NETWORKS = (
    "sparkdl.training.loop",
    "sparkdl.scoring.task",
    "sparkdl.extreme.tasks",
    "horovod.torch",
    "torch._dynamo",  # imported when an optimizer is made
)
"""The modules for ranks, and for tasks that train and score. Importing them uses no GPU and starts no threads, except
those of OpenBLAS and jemalloc, which start again after a fork. So workers can be forked afterwards."""

SPARKS_ZIP = re.compile(r"/python/lib/(pyspark|py4j-[^/]*)\.zip$")


def main() -> None:
    """Import what workers need, and fork workers when Spark requests them. Ends with the executor."""
    _leave_zips()
    preload(OF_DATA if os.environ.get("SPARKDL_TASKS") == "data" else OF_DATA + OF_NETWORKS)
    from pyspark import daemon

    daemon.worker = _ending_silently(daemon.worker)
    gc.freeze()  # a worker's garbage collector would write to, and so copy, all memory shared with this process
    daemon.manager()  # type: ignore[no-untyped-call]


def _leave_zips() -> None:
    """Import PySpark from its files, not from Spark's zips on the path, if both belong to the same installation.

    Before every task, a worker lets Python refresh its import path. Python 3.11 then reads the directory of each zip,
    which takes longer than the rest of a short task.
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
    """A worker that ends without a traceback if Spark closes its connection, as it does when it needs no more rows."""

    def work(*args: Any) -> int:
        try:
            return worker(*args)
        except ConnectionError:
            os._exit(1)

    return work


if __name__ == "__main__":
    main()
