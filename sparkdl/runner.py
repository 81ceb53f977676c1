"""Runs a user's own function or script on all ranks at once: HorovodRunner, TorchRunner and ``distributed``."""

import logging
import math
import os
import secrets
import time
from collections.abc import Callable
from functools import update_wrapper
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar, get_args

from pyspark.sql import SparkSession

from sparkdl.cluster import (
    LaunchBackend,
    Rank,
    Timeouts,
    count_ranks,
    exit_on_sigterm,
    get_session,
    run_local,
    run_ranks,
)
from sparkdl.cluster.launch import LogVerbosity
from sparkdl.cluster.scripts import Script
from sparkdl.cluster.watchdog import MISSED_SECONDS
from sparkdl.collectives import HorovodBackend, TorchrunBackend
from sparkdl.errors import ConfigError, RankError
from sparkdl.extras import require
from sparkdl.program import running_script
from sparkdl.settings import Cluster
from sparkdl.storage import check_writable, exists, local_path, make_folder

__all__ = ["DistributedFunction", "HorovodRunner", "TorchRunner", "checkpoint_dir", "distributed"]

P = ParamSpec("P")
T = TypeVar("T")
CHECKPOINT_DIR = "SPARKDL_CHECKPOINT_DIR"
"""The environment variable with the folder of a program's checkpoints."""
RESTART_SECONDS = 1.0  # from a failure to the next attempt

logger = logging.getLogger("sparkdl")


class HorovodRunner:
    """Runs a function that calls ``horovod.torch`` on ``np`` ranks. Runs on the driver.

    See https://docs.databricks.com/en/archive/machine-learning/train-model/horovod-runner.html
    """

    def __init__(self, *, np: int, driver_log_verbosity: LogVerbosity = "log_callback_only") -> None:
        """Choose where ranks run, and which of their output the driver prints.

        ``np > 0``: so many ranks in one barrier stage, one per task slot; waits for the slots. ``np < 0``: ``-np``
        processes on the driver, to try out a program; the driver prints all their output. ``np = 0``: one rank in every
        slot of the cluster (deprecated by Databricks).

        ``driver_log_verbosity``: with ``"all"``, the driver prints all output of ranks; with ``"log_callback_only"``
        only messages of :func:`sparkdl.horovod.log_to_driver`. All other output goes to the executors' logs, or to the
        terminal if Spark is embedded.
        """
        _check(np, driver_log_verbosity)
        self.num_processor = np
        self.driver_log_verbosity = driver_log_verbosity

    def run(self, main: Callable[..., Any], **kwargs: Any) -> Any:
        """Call ``main(**kwargs)`` on every rank and return what rank 0 returns.

        A rank may be without a heartbeat for any time, because a long call that holds Python's global lock (a large
        ``pickle.load``) blocks the heartbeat. If a rank's process ends or its host vanishes, this raises an error as
        soon as the connection is lost; if its process is stopped (SIGSTOP), this waits.

        Function and arguments are pickled by cloudpickle. Raises :class:`~sparkdl.errors.RankError` if a rank fails,
        :class:`~sparkdl.errors.NotEnoughSlotsError` if there are fewer slots than ranks, and
        :class:`~sparkdl.errors.ConfigError` if Horovod is not installed or the function cannot be pickled.
        """

        def call(rank: Rank) -> Any:
            require("horovod.torch", extra="classic")
            result = main(**kwargs)
            return result if rank.rank == 0 else None

        require("horovod", extra="classic")  # before anything starts; executors may have packages of their own
        call.__qualname__ = getattr(main, "__qualname__", "main")  # the name that errors mention
        patient = Timeouts(silence_timeout=math.inf)
        return _launch(call, self.num_processor, HorovodBackend(), self.driver_log_verbosity, patient)


class TorchRunner:
    """Runs a program of torch.distributed on ``np`` ranks: a function, or a script. Runs on the driver.

    Every rank has the environment variables that ``torchrun`` sets (``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``,
    ``LOCAL_WORLD_SIZE``, ``MASTER_ADDR``, ``MASTER_PORT`` and so on), so that ``init_process_group``, DDP, FSDP,
    Accelerate, Lightning and transformers' ``Trainer`` find the other ranks without further settings.
    """

    def __init__(
        self,
        *,
        np: int,
        driver_log_verbosity: LogVerbosity = "all",
        max_restarts: int = 0,
        checkpoint_dir: str | None = None,
        heartbeat_timeout: float = 300.0,
    ) -> None:
        """Choose where ranks run, which of their output the driver prints, and how failures are handled.

        ``np`` is the same as in :class:`HorovodRunner`: ranks in task slots, or if negative, processes on the driver.

        ``driver_log_verbosity``: with ``"all"``, the driver prints all output of ranks, each line with its rank in
        front; with ``"log_callback_only"``, output stays in the executors' logs.

        ``max_restarts``: how often a program that fails is restarted, on all ranks and from its beginning, as by
        ``torchrun --max-restarts``. To continue, it has to save its state in ``checkpoint_dir``, a folder on storage
        that driver and ranks reach. The runner makes this folder; the program gets its path from
        :func:`sparkdl.checkpoint_dir`.

        ``heartbeat_timeout``: a thread of each rank sends a heartbeat every second. A rank without a heartbeat for so
        many seconds counts as failed: its process is stopped, its host is gone, or native code holds Python's global
        lock for that long.

        Raises :class:`~sparkdl.errors.ConfigError` for invalid values.
        """
        _check(np, driver_log_verbosity)
        if isinstance(max_restarts, bool) or not isinstance(max_restarts, int) or max_restarts < 0:
            raise ConfigError(f"max_restarts must be a whole number from 0 on, not {max_restarts!r}")
        if not heartbeat_timeout >= MISSED_SECONDS:
            raise ConfigError(f"heartbeat_timeout must be at least {MISSED_SECONDS:g} s, not {heartbeat_timeout!r}")
        self.num_processor = np
        self.driver_log_verbosity = driver_log_verbosity
        self.max_restarts = max_restarts
        self.checkpoint_dir = checkpoint_dir
        self._timeouts = Timeouts(silence_timeout=heartbeat_timeout)

    def run(self, main: Callable[..., Any] | str | os.PathLike[str], *args: Any, **kwargs: Any) -> Any:
        """Call ``main(*args, **kwargs)`` on every rank and return what rank 0 returns.

        ``main`` may also be the path of a script; then ``args`` is its command line, it runs as ``__main__`` and may
        import the modules beside it, and the result is None. Functions and arguments are pickled by cloudpickle. The
        processes of the ranks end with the run.

        Raises :class:`~sparkdl.errors.RankError` if a rank fails and no restart is left,
        :class:`~sparkdl.errors.NotEnoughSlotsError` if there are fewer slots than ranks,
        :class:`~sparkdl.errors.ConfigError` if the function cannot be pickled or the script does not exist, and
        :class:`~sparkdl.errors.StorageError` if ``checkpoint_dir`` is not writable.
        """
        if callable(main):
            return self._run(main, args, kwargs)
        if kwargs:
            raise ConfigError(
                f"a script takes only positional arguments, its command line, but got {next(iter(kwargs))!r}"
            )
        with running_script(Path(main)):
            return self._run(Script.open(Path(main)), tuple(map(str, args)), {})

    def _run(self, main: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        folder = _made(self.checkpoint_dir) if self.checkpoint_dir else None

        def call(rank: Rank) -> Any:
            if folder and local_path(folder) and not exists(folder):
                raise ConfigError(
                    f"the folder {folder} does not exist on {rank.host}, where rank {rank.rank} runs; checkpoint_dir"
                    " has to be on storage that the driver and all executors share"
                )
            result = main(*args, **kwargs)
            return result if rank.rank == 0 else None

        call.__qualname__ = getattr(main, "__qualname__", "main")  # the name that errors mention
        variables = {
            "TORCHELASTIC_RUN_ID": f"sparkdl-{secrets.token_hex(4)}",
            "TORCHELASTIC_MAX_RESTARTS": str(self.max_restarts),
            **({CHECKPOINT_DIR: folder} if folder else {}),
        }
        attempt = 0
        while True:
            backend = TorchrunBackend({**variables, "TORCHELASTIC_RESTART_COUNT": str(attempt)})
            try:
                return _launch(
                    call, self.num_processor, backend, self.driver_log_verbosity, self._timeouts, own_process=True
                )
            except RankError as error:
                if attempt == self.max_restarts:
                    raise
                attempt += 1
                logger.warning("%s\n\nrestart %d of %d", error, attempt, self.max_restarts)
                time.sleep(RESTART_SECONDS)


class DistributedFunction(Generic[P, T]):
    """A function that can be called in this process or on ranks; see :func:`distributed`."""

    def __init__(self, function: Callable[P, T], runner: TorchRunner) -> None:
        self._function, self._runner = function, runner
        update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the function in this process."""
        return self._function(*args, **kwargs)

    def distributed(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call it on every rank, and return rank 0's result. Runs on the driver; see :meth:`TorchRunner.run`."""
        result: T = self._runner.run(self._function, *args, **kwargs)
        return result


def distributed(num_ranks: int, **options: Any) -> Callable[[Callable[P, T]], DistributedFunction[P, T]]:
    """A decorator: ``train.distributed(…)`` runs the function on ranks, and ``train(…)`` in this process.

    ``num_ranks`` is ``np`` of :class:`TorchRunner`, and ``options`` are its other arguments.
    """
    runner = TorchRunner(np=num_ranks, **options)
    return lambda function: DistributedFunction(function, runner)


def checkpoint_dir() -> str | None:
    """The ``checkpoint_dir`` of the :class:`TorchRunner` that runs this program. Runs on a rank.

    None if the runner has none, and outside of a run. The environment variable ``SPARKDL_CHECKPOINT_DIR`` has the same
    path.
    """
    return os.environ.get(CHECKPOINT_DIR)


def _check(np: int, driver_log_verbosity: LogVerbosity) -> None:
    if isinstance(np, bool) or not isinstance(np, int):
        raise ConfigError(f"np must be a whole number, not {np!r}")
    if driver_log_verbosity not in get_args(LogVerbosity):
        raise ConfigError(
            f"driver_log_verbosity must be one of {', '.join(get_args(LogVerbosity))}, not {driver_log_verbosity!r}"
        )


def _launch(
    call: Callable[[Rank], Any],
    np: int,
    backend: LaunchBackend,
    verbosity: LogVerbosity,
    timeouts: Timeouts,
    *,
    own_process: bool = False,
) -> Any:
    """Launch the ranks, and return rank 0's result."""
    with exit_on_sigterm():
        if np < 0:  # new processes on the driver, which prints all their output
            return run_local(call, -np, backend=backend, timeouts=timeouts)[0]
        spark = get_session(Cluster(embedded_slots=max(np, Cluster().embedded_slots)))
        return run_ranks(
            call,
            np or _all_slots(spark),
            spark=spark,
            backend=backend,
            log_verbosity=verbosity,
            timeouts=timeouts,
            own_process=own_process,
        )[0]


def _made(folder: str) -> str:
    """Make the folder, and return its absolute path."""
    path = local_path(folder)
    made = str(path.absolute()) if path else folder
    check_writable(made)
    make_folder(made)
    return made


def _all_slots(spark: SparkSession) -> int:
    slots = count_ranks(spark)
    if not slots:
        raise ConfigError(
            "np=0 means every slot of the cluster, but Spark does not report their number; set np to a number of ranks"
        )
    return slots
