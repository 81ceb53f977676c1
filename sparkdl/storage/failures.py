"""Translates the exceptions of all storage clients to Python's own, and retries operations during outages."""

import errno
import logging
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

from sparkdl.errors import StorageError
from sparkdl.storage.hadoop_errors import number_of
from sparkdl.storage.paths import local_path, scheme

__all__ = ["FailureError", "OutageError", "RefusalError", "patient"]

PATIENCE_SECONDS = 300.0
"""How long an operation is retried: longer than servers take to start, shorter than ``cluster.stall_timeout``."""
LONGEST_PAUSE_SECONDS = 5.0
"""The longest pause between two tries."""

_OUTAGE = errno.ETIMEDOUT
"""A failure that may pass: no connection, no answer in time, too many requests, a server that starts or fails."""
_CLIENTS = {"adlfs", "aiobotocore", "aiohttp", "azure", "botocore", "gcsfs", "google", "requests", "urllib3"}
"""The clients that fsspec uses. Their exceptions are recognised by name, because the packages may not be installed."""
_BY_NAME = {
    "aiohttp.client_exceptions.ClientConnectionError": _OUTAGE,
    "aiohttp.client_exceptions.ClientPayloadError": _OUTAGE,
    "azure.core.exceptions.ClientAuthenticationError": errno.EACCES,
    "azure.core.exceptions.ServiceRequestError": _OUTAGE,
    "azure.core.exceptions.ServiceResponseError": _OUTAGE,
    "botocore.exceptions.ConnectionError": _OUTAGE,
    "botocore.exceptions.HTTPClientError": _OUTAGE,
    "botocore.exceptions.IncompleteReadError": _OUTAGE,
    "botocore.exceptions.NoCredentialsError": errno.EACCES,
    "botocore.exceptions.PartialCredentialsError": errno.EACCES,
    "google.auth.exceptions.DefaultCredentialsError": errno.EACCES,
    "google.auth.exceptions.TransportError": _OUTAGE,
    "requests.exceptions.ChunkedEncodingError": _OUTAGE,
    "requests.exceptions.ConnectionError": _OUTAGE,
    "requests.exceptions.Timeout": _OUTAGE,
    "socket.gaierror": _OUTAGE,
}
_BY_STATUS: dict[int | None, int] = {
    **dict.fromkeys((408, 425, 429, 500, 502, 503, 504), _OUTAGE),
    **dict.fromkeys((401, 403), errno.EACCES),
    **dict.fromkeys((404, 410), errno.ENOENT),
    412: errno.EEXIST,  # the request was to write the object only if it did not exist
    507: errno.ENOSPC,
}
_STATUS_NAMES = ("status", "status_code", "code")
_LIBHDFS_UNKNOWN = 255
"""The error code of libhdfs for Java exceptions that it does not know: a name node in standby, no connection."""
_BY_CLASS: dict[type[OSError], int] = {
    FileExistsError: errno.EEXIST,
    FileNotFoundError: errno.ENOENT,
    IsADirectoryError: errno.EISDIR,
    NotADirectoryError: errno.ENOTDIR,
    PermissionError: errno.EACCES,
}
"""The ``errno`` of exceptions that do not carry one."""
_OUTAGE_NUMBERS = {errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETRESET, errno.ENETUNREACH}
_OUTAGE_NUMBERS |= {errno.ESTALE, _LIBHDFS_UNKNOWN}

_CREDENTIALS = {
    **dict.fromkeys(
        ("s3", "s3a"), "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE and the file ~/.aws/credentials"
    ),
    **dict.fromkeys(("gs", "gcs"), "GOOGLE_APPLICATION_CREDENTIALS, the path of a key file"),
    **dict.fromkeys(
        ("abfs", "abfss", "az"),
        "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or AZURE_STORAGE_CONNECTION_STRING",
    ),
    "hdfs": "HADOOP_USER_NAME to a user who has the right, or ask for it",
}
"""By the scheme of a path, the variables from which its client takes credentials. For others, fsspec has variables."""

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

_log = logging.getLogger(__name__)


class RefusalError(StorageError, PermissionError):
    """Storage refused access: credentials are missing or wrong, or lack a right."""

    errno = errno.EACCES


class OutageError(StorageError, TimeoutError):
    """Storage that has not answered for :data:`PATIENCE_SECONDS`."""

    errno = errno.ETIMEDOUT


class FailureError(StorageError, OSError):
    """Any other failure of storage or of its client."""

    errno = errno.EIO


def patient(operation: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """A decorator for an operation on a path (its first argument): retries during outages, and translates errors.

    During an outage the operation is retried for :data:`PATIENCE_SECONDS`, with a warning in the log; then it raises
    TimeoutError. All other failures are raised at once as for a local file: FileNotFoundError, FileExistsError,
    PermissionError, and OSError for a full disk and everything else. For remote storage, TimeoutError, PermissionError
    and the unspecific OSError are also :class:`~sparkdl.errors.StorageError`, with one line that says what to do.
    The operation may run several times, so it must be idempotent.
    """

    @wraps(operation)
    def wait_out(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        path = str(args[0])
        retrying = Retrying(
            retry=retry_if_exception(lambda error: _meaning(error) == _OUTAGE),
            stop=stop_after_delay(PATIENCE_SECONDS),
            wait=wait_random_exponential(multiplier=0.2, max=LONGEST_PAUSE_SECONDS),
            before_sleep=lambda state: _tell(path, state),
            reraise=True,
        )
        try:
            return retrying(operation, *args, **kwargs)
        except Exception as error:
            if (told := _as_os_error(error, path)) is error:
                raise
            raise told from error

    return wait_out


def _tell(path: str, state: RetryCallState) -> None:
    if state.attempt_number == 1 and state.outcome:
        _log.warning(
            "the storage of %s does not answer (%s); trying again for %g s",
            *(path, _in_one_line(state.outcome.exception()), PATIENCE_SECONDS),
        )


def _as_os_error(error: Exception, path: str) -> Exception:
    """The exception translated to Python's own. Exceptions that are not about storage are returned unchanged."""
    meaning = _meaning(error)
    if meaning is None or isinstance(error, StorageError):
        return error
    told = _in_one_line(error)
    if local_path(path) is None:
        if meaning == errno.EACCES:
            return _of_ours(RefusalError, path, f"{told.rstrip('.')}; {_remedy(path)}")
        if meaning == _OUTAGE:
            return _of_ours(OutageError, path, f"no answer for {PATIENCE_SECONDS:g} s: {told}")
        if meaning == errno.EIO:
            return _of_ours(FailureError, path, told)
    if isinstance(error, OSError) and error.errno == meaning:
        return error
    return OSError(meaning, told, path)


def _in_one_line(error: BaseException | None) -> str:
    """The message of an error in one line, without the Java exceptions around it."""
    said = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(said.replace("\\n", "\n").partition("\n\tat ")[0].replace("\\t", "\t").split())


def _of_ours(kind: type[RefusalError | OutageError | FailureError], path: str, reason: str) -> Exception:
    error = kind(f"{path}: {reason}")
    error.strerror = reason  # for callers whose own message names the path
    return error


def _remedy(path: str) -> str:
    variables = _CREDENTIALS.get(scheme(path), f"the variables FSSPEC_{scheme(path).upper()}_... of its client")
    return f"set {variables}, on the driver and all executors, and check that they have the right to read and write"


def _meaning(error: BaseException) -> int | None:
    """The ``errno`` of an exception or of one of its causes; None if none of them is about storage."""
    for each in _causes(error):
        for cls in type(each).__mro__:
            if number := _BY_NAME.get(f"{cls.__module__}.{cls.__qualname__}"):
                return number
        if number := _BY_STATUS.get(_status(each)):
            return number
        if isinstance(each, ConnectionError | TimeoutError) or getattr(each, "errno", None) in _OUTAGE_NUMBERS:
            return _OUTAGE
        if number := number_of(each):
            return _OUTAGE if number in _OUTAGE_NUMBERS else number
    if isinstance(error, OSError):
        return error.errno or _BY_CLASS.get(type(error), errno.EIO)
    return errno.EIO if type(error).__module__.partition(".")[0] in _CLIENTS else None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _status(error: BaseException) -> int | None:
    """The HTTP status in an exception; clients keep it in different attributes."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        status: Any = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return int(status) if status else None
    kept = (getattr(response, "status_code", None), *(getattr(error, name, None) for name in _STATUS_NAMES))
    return next((status for status in kept if isinstance(status, int)), None)
