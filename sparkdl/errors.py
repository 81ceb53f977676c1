"""The errors a user can meet.

Every message says what happened, where, and what to do next. All of them derive from :class:`SparkdlError`, so that a
job can tell "the input was wrong" from "the program is broken", and each says who can mend it, as the exit code that
the ``sparkdl`` command ends with.
"""

from enum import IntEnum
from typing import ClassVar

from sparkdl.masking import without_credentials

__all__ = [
    "CheckpointError",
    "ClusterError",
    "ConfigError",
    "DamagedCheckpointError",
    "DataError",
    "DatasetError",
    "ExitCode",
    "ModelError",
    "NotEnoughSlotsError",
    "OnlySparkError",
    "RankError",
    "RegistryError",
    "RunCancelledError",
    "SparkdlError",
    "StorageError",
    "TrackingError",
    "TrainingError",
]


class ExitCode(IntEnum):
    """How the ``sparkdl`` command ends: 2 is every command line's, and what follows is from ``sysexits.h``."""

    PROGRAM = 1
    """A defect of sparkdl; there is a traceback."""
    USER = 2
    """Arguments, settings, data, or code of the user's: to start the same again would end in the same way."""
    CLUSTER = 69
    """Spark: slots, executors, hosts, the address of a server. EX_UNAVAILABLE."""
    STORAGE = 74
    """Storage, or MLflow's store. EX_IOERR."""
    INTERRUPTED = 130
    """Ctrl-C, or somebody cancelled Spark's job: 128 + SIGINT, as shells say it."""


class SparkdlError(Exception):
    """What every error of this package is. Credentials in addresses (``scheme://user:password@host``) are masked."""

    exit_code = ExitCode.USER

    def __init__(self, message: str = "") -> None:
        super().__init__(without_credentials(message))


class ConfigError(SparkdlError, ValueError):
    """A setting that does not exist, has the wrong type or an impossible value."""


class DataError(SparkdlError):
    """Raw data that cannot become a dataset: a missing source or column, nulls, NaNs, too few rows."""


class DatasetError(SparkdlError):
    """A prepared dataset that is missing, incomplete, altered, or made with other settings."""


class StorageError(DatasetError):
    """Storage that is full, or does not take what a dataset or predictions consist of."""

    exit_code = ExitCode.STORAGE


class ModelError(SparkdlError):
    """A network that does not fit its inputs or labels, or that cannot be exported."""


class OnlySparkError(ModelError):
    """A model preprocesses with a stage that Spark alone can apply, where there is no Spark."""


class ClusterError(SparkdlError):
    """Spark cannot be reached, or has not what was asked for."""

    exit_code = ExitCode.CLUSTER


class NotEnoughSlotsError(ClusterError):
    """More ranks were asked for than the cluster has slots."""


class RankError(SparkdlError):
    """A rank failed; the message starts with that rank's own traceback."""

    _EXIT_CODES: ClassVar = {
        **dict.fromkeys(
            (None, "process death", "silent", "stalled", "not started", "ConnectionError"), ExitCode.CLUSTER
        ),
        "sparkdl.errors.CheckpointError": ExitCode.STORAGE,
        "sparkdl.errors.DamagedCheckpointError": ExitCode.STORAGE,
    }
    """What need not be the fault of the user's code; every other exception is."""

    def __init__(
        self,
        message: str,
        *,
        rank: int | None = None,
        exception_type: str | None = None,
        reason: str = "",
        step: int | None = None,
        host: str | None = None,
    ) -> None:
        super().__init__(message)
        self.rank = rank
        """The rank that failed first, if it is known."""
        self.exception_type = exception_type
        """The exception it raised, as ``ValueError`` or ``package.module.Name``, or what happened to it: ``process
        death`` (no time to raise one), ``silent`` (no heartbeat), ``stalled`` (no progress) or ``not started``."""
        self.reason = without_credentials(reason)
        """What that exception said, without the traceback."""
        self.step = step
        """The last step that it reported, if it did."""
        self.host = host
        """Where it ran, if it is known."""
        self.exit_code = self._EXIT_CODES.get(exception_type, ExitCode.USER)


class RunCancelledError(SparkdlError):
    """A run that somebody ended from outside: ``cancelAllJobs``, a notebook's stop button, Spark's web page.

    MLflow shows it as KILLED.
    """

    exit_code = ExitCode.INTERRUPTED


class TrainingError(SparkdlError):
    """Training stopped because going on would be worthless, for example because the loss is not a number."""


class CheckpointError(SparkdlError):
    """A checkpoint that is missing, torn or altered, or that cannot be written."""

    exit_code = ExitCode.STORAGE


class DamagedCheckpointError(CheckpointError):
    """A checkpoint is not what was written: torn, altered or incomplete. The one before it may be whole."""


class RegistryError(SparkdlError):
    """A registered model, version or alias that does not exist, or a registry that refuses."""


class TrackingError(SparkdlError):
    """The tracking store cannot be reached, or did not take what could not be left out."""

    exit_code = ExitCode.STORAGE
