"""The errors that a user can meet.

Every message says what happened, where, and what to do next. All errors derive from :class:`SparkdlError`, so that a
caller can tell a known problem from a defect of the program. Each class has the exit code with which the ``sparkdl``
command ends, which says where the problem is: with the user, the cluster or storage.
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
    """The exit codes of the ``sparkdl`` command. 69 and 74 are those of ``sysexits.h``."""

    PROGRAM = 1
    """A defect of sparkdl; there is a traceback."""
    USER = 2
    """Arguments, settings, data, or the user's code: the same job would fail again."""
    CLUSTER = 69
    """Spark: slots, executors, hosts, the address of a server. EX_UNAVAILABLE."""
    STORAGE = 74
    """Storage, or MLflow's store. EX_IOERR."""
    INTERRUPTED = 130
    """Ctrl-C, or Spark's job was cancelled. 128 + SIGINT, as in shells."""


class SparkdlError(Exception):
    """The base of all errors of this package. It masks credentials in addresses (``scheme://user:password@host``)."""

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
    """Storage is full, does not answer, or refuses access to a dataset, predictions or checkpoints."""

    exit_code = ExitCode.STORAGE


class ModelError(SparkdlError):
    """A network that does not fit its inputs or labels, or that cannot be exported."""


class OnlySparkError(ModelError):
    """A model has a preprocessing stage that only Spark can apply, and there is no Spark."""


class ClusterError(SparkdlError):
    """Spark cannot be reached, or lacks what the job needs."""

    exit_code = ExitCode.CLUSTER


class NotEnoughSlotsError(ClusterError):
    """The job needs more ranks than the cluster has slots."""


class RankError(SparkdlError):
    """A rank failed; the message starts with that rank's own traceback."""

    _EXIT_CODES: ClassVar = {
        **dict.fromkeys(
            (None, "process death", "silent", "stalled", "not started", "ConnectionError"), ExitCode.CLUSTER
        ),
        "sparkdl.errors.CheckpointError": ExitCode.STORAGE,
        "sparkdl.errors.DamagedCheckpointError": ExitCode.STORAGE,
    }
    """Exceptions that may have a cause outside the user's code; all others count as the user's."""

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
        """The exception that the rank raised, as ``ValueError`` or ``package.module.Name``; or, if it could not raise
        one, ``process death``, ``silent`` (no heartbeat), ``stalled`` (no progress) or ``not started``."""
        self.reason = without_credentials(reason)
        """The message of that exception, without the traceback."""
        self.step = step
        """The last step that the rank reported, if any."""
        self.host = host
        """The host of the rank, if it is known."""
        self.exit_code = self._EXIT_CODES.get(exception_type, ExitCode.USER)


class RunCancelledError(SparkdlError):
    """The run was cancelled from outside: by ``cancelAllJobs``, a notebook's stop button, or Spark's web page.

    MLflow shows it as KILLED.
    """

    exit_code = ExitCode.INTERRUPTED


class TrainingError(SparkdlError):
    """Training stopped because continuing would be useless, for example because the loss is NaN."""


class CheckpointError(SparkdlError):
    """A checkpoint that is missing, torn or altered, or that cannot be written."""

    exit_code = ExitCode.STORAGE


class DamagedCheckpointError(CheckpointError):
    """A checkpoint differs from what was written: torn, altered or incomplete. The previous one may be intact."""


class RegistryError(SparkdlError):
    """A registered model, version or alias does not exist, or the registry refuses a request."""


class TrackingError(SparkdlError):
    """The tracking store cannot be reached, or refuses a record that the job needs."""

    exit_code = ExitCode.STORAGE
