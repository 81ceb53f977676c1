"""The process that Spark's Python workers are forked from, with the slow part of their start done once.

Runs in the embedded Spark, and on executors where ``spark.python.daemon.module=sparkdl.daemon`` asks for it. Without
it everything works, only later: each worker loads PyTorch for itself, which takes seconds, and so does each that takes
the place of a worker that died. A job whose tasks need no PyTorch says so by ``spark.executorEnv.SPARKDL_TASKS=data``.
"""

import gc
import os
from collections.abc import Callable
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


def main() -> None:
    """Import what workers need and fork them as Spark asks for them. Ends with the executor."""
    preload(OF_DATA if os.environ.get("SPARKDL_TASKS") == "data" else OF_DATA + OF_NETWORKS)
    from pyspark import daemon

    daemon.worker = _ending_silently(daemon.worker)
    gc.freeze()  # what is shared stays shared: after every task, a worker's collector would go through all of it
    daemon.manager()  # type: ignore[no-untyped-call]


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
