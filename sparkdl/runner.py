"""HorovodRunner, as Databricks documents it: a training function with Horovod in it, on all ranks at once."""

import math
from collections.abc import Callable
from typing import Any, get_args

from pyspark.sql import SparkSession

from sparkdl.cluster import Rank, Timeouts, count_slots, get_session, run_local, run_ranks
from sparkdl.cluster.launch import LogVerbosity
from sparkdl.collectives import HorovodBackend
from sparkdl.errors import ConfigError
from sparkdl.extras import require
from sparkdl.settings import Cluster

__all__ = ["HorovodRunner"]


class HorovodRunner:
    """Runs a function that calls ``horovod.torch`` on ``np`` ranks. Runs on the driver.

    See https://docs.databricks.com/en/archive/machine-learning/train-model/horovod-runner.html
    """

    def __init__(self, *, np: int, driver_log_verbosity: LogVerbosity = "log_callback_only") -> None:
        """Choose where to run and what to hear.

        ``np > 0``: so many ranks in one barrier stage, one in each task slot; waits for the slots. ``np < 0``: ``-np``
        processes on the driver, to try a program out; everything they print appears here. ``np = 0``: one rank in every
        slot of the cluster (deprecated by Databricks).

        ``driver_log_verbosity``: ``"all"`` prints everything that ranks print, ``"log_callback_only"`` only what they
        hand to :func:`sparkdl.horovod.log_to_driver`; the rest goes to the executors' logs, which are the terminal's
        where Spark is embedded.
        """
        if isinstance(np, bool) or not isinstance(np, int):
            raise ConfigError(f"np must be a whole number, not {np!r}")
        if driver_log_verbosity not in get_args(LogVerbosity):
            raise ConfigError(
                f"driver_log_verbosity must be one of {', '.join(get_args(LogVerbosity))}, not {driver_log_verbosity!r}"
            )
        self.num_processor = np
        self.driver_log_verbosity = driver_log_verbosity

    def run(self, main: Callable[..., Any], **kwargs: Any) -> Any:
        """Call ``main(**kwargs)`` on every rank and return what rank 0 returns.

        A rank may take as long as it likes, and may be silent, because a call that does not let go of Python's lock (a
        large ``pickle.load``) holds its heartbeat up. A rank whose process ends or whose host vanishes is an error as
        soon as its connection is lost; one whose process is stopped (SIGSTOP) is waited for.

        Function and arguments are pickled by cloudpickle. Raises :class:`~sparkdl.errors.RankError` when a rank fails,
        :class:`~sparkdl.errors.NotEnoughSlotsError` when there are fewer slots than ranks, and
        :class:`~sparkdl.errors.ConfigError` when Horovod is not installed or the function cannot be pickled.
        """

        def call(rank: Rank) -> Any:
            require("horovod.torch", extra="classic")
            result = main(**kwargs)
            return result if rank.rank == 0 else None

        require("horovod", extra="classic")  # before anything starts; executors may have packages of their own
        call.__qualname__ = getattr(main, "__qualname__", "main")  # the name that errors mention
        backend, patient = HorovodBackend(), Timeouts(silence_timeout=math.inf)
        if self.num_processor < 0:
            return run_local(call, -self.num_processor, backend=backend, timeouts=patient)[0]
        spark = get_session(Cluster(embedded_slots=max(self.num_processor, Cluster().embedded_slots)))
        num_ranks = self.num_processor or _all_slots(spark)
        verbosity = self.driver_log_verbosity
        return run_ranks(call, num_ranks, spark=spark, backend=backend, log_verbosity=verbosity, timeouts=patient)[0]


def _all_slots(spark: SparkSession) -> int:
    slots = count_slots(spark)
    if not slots:
        raise ConfigError(
            "np=0 means every slot of the cluster, and Spark does not say how many there are; give a number"
        )
    return slots
