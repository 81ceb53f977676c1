"""Storage that fails: what is waited for, what is told at once, and in which words."""

import errno
import logging
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import aiohttp
import botocore.exceptions
import google.auth.exceptions
import pytest
import requests
from s3fs import S3FileSystem

from sparkdl.data import open_source, prepare
from sparkdl.errors import ExitCode, StorageError
from sparkdl.settings import Prepare, Source
from sparkdl.storage import (
    check_writable,
    claim_file,
    exists,
    failures,
    list_folder,
    local_path,
    move_files,
    open_file,
    read_file,
    remove,
    spark_url,
    write_file,
)
from sparkdl.storage.failures import RefusalError, patient

from ...s3_server import S3Server

OUTAGE_SECONDS = 3.0


@pytest.fixture
def outage(s3: S3Server) -> Iterator[None]:
    """The server is gone, and comes back after a while."""
    s3.stop()
    back = threading.Timer(OUTAGE_SECONDS, s3.start)
    back.start()
    yield
    back.join()


def test_an_outage_in_the_middle_of_a_stream_costs_time_and_nothing_else(s3: S3Server) -> None:
    content = bytes(range(256)) * (10 << 12)
    write_file("s3://tests/file", content)
    with open_file("s3://tests/file") as stream:
        first = stream.read(1000)
        s3.stop()
        back = threading.Timer(OUTAGE_SECONDS, s3.start)
        back.start()
        assert first + stream.read() == content
        back.join()


@pytest.mark.usefixtures("outage")
def test_what_begins_in_an_outage_is_done_after_it_and_told(caplog: pytest.LogCaptureFixture) -> None:
    began = time.monotonic()
    write_file("s3://tests/file", b"content")
    assert time.monotonic() - began > OUTAGE_SECONDS - 1
    assert read_file("s3://tests/file") == b"content"
    (told,) = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert "the storage of s3://tests/file does not answer" in told and "trying again for 300 s" in told


def test_an_outage_that_lasts_is_an_error_that_says_how_long_it_was_waited_out(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "PATIENCE_SECONDS", 1.0)
    s3.stop()
    try:
        for operation in (read_file, list_folder, remove):
            with pytest.raises(TimeoutError, match="no answer for 1 s: Could not connect to the endpoint"):
                operation("s3://tests/file")
    finally:
        s3.start()


def test_what_no_waiting_changes_is_told_at_once(s3: S3Server) -> None:
    began = time.monotonic()
    for wrong in (
        lambda: write_file("s3://no-such-bucket/file", b""),
        lambda: read_file("s3://no-such-bucket/file"),
        lambda: claim_file("s3://no-such-bucket/file", b""),
        lambda: move_files("s3://tests/absent", "s3://tests/there"),
    ):
        with pytest.raises(FileNotFoundError):
            wrong()
    assert time.monotonic() - began < 5


@pytest.fixture
def stranger(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process that has no credentials, nor a machine that would give it some."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, "/nowhere")
    S3FileSystem.clear_instance_cache()  # it remembers what it was let in with
    yield
    monkeypatch.undo()
    S3FileSystem.clear_instance_cache()


NO_CREDENTIALS = "Unable to locate credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
PLACE = "s3://tests/place"


@pytest.mark.usefixtures("stranger")
@pytest.mark.parametrize(
    "door",
    [
        lambda: exists(PLACE),
        lambda: open_file(PLACE),
        lambda: check_writable(PLACE),
        lambda: prepare(Source(format="idx", path="raw"), Prepare(output=PLACE)),
        *[
            lambda kind=kind: open_source(Source(format=kind, path=PLACE, options={"height": 4, "width": 4}), None)
            for kind in ("idx", "images", "xc", "wordnet", "debian", "dictionary")
        ],
    ],
)
def test_credentials_that_are_missing_are_one_line_that_says_where_to_set_them(door: Callable[[], object]) -> None:
    with pytest.raises(StorageError) as raised:
        door()
    message = str(raised.value)
    assert PLACE in message and NO_CREDENTIALS in message and "\n" not in message
    assert raised.value.exit_code == ExitCode.STORAGE


def test_a_bucket_that_is_not_there_is_named_before_anything_is_written(s3: S3Server) -> None:
    with pytest.raises(StorageError, match=r"cannot write to s3://no-such-bucket/place: .*bucket does not exist"):
        check_writable("s3://no-such-bucket/place")


@pytest.mark.parametrize("path", ["oss://bucket/x", "abfss://box@account.dfs.core.windows.net/x", "nonsense://x"])
def test_storage_that_no_installed_package_speaks_to_is_named_and_still_spark_may_know_it(path: str) -> None:
    with pytest.raises(StorageError, match="install the package for this storage") as raised:
        exists(path)
    assert path.partition("://")[0] in str(raised.value)
    assert local_path(path) is None and spark_url(path) == path


def test_an_error_of_storage_comes_back_from_another_process_as_it_was() -> None:
    error = pickle.loads(pickle.dumps(RefusalError("s3://bucket/x: refused")))
    assert (type(error), str(error), error.errno) == (RefusalError, "s3://bucket/x: refused", errno.EACCES)


def client_error(status: int) -> botocore.exceptions.ClientError:
    answer = {"Error": {"Code": str(status), "Message": "said"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return botocore.exceptions.ClientError(answer, "PutObject")


def http_error(status: int) -> requests.HTTPError:
    response = requests.Response()
    response.status_code = status
    return requests.HTTPError("said", response=response)


PASSING = [
    client_error(503),
    http_error(429),
    aiohttp.ServerDisconnectedError(),
    aiohttp.ClientPayloadError("cut off"),
    botocore.exceptions.EndpointConnectionError(endpoint_url="http://there"),
    google.auth.exceptions.TransportError("no connection"),
    requests.ConnectionError("no connection"),
    ConnectionResetError(errno.ECONNRESET, "reset"),
    OSError(errno.ESTALE, "stale file handle"),
]
LASTING = [
    (client_error(403), RefusalError),
    (http_error(401), PermissionError),
    (botocore.exceptions.NoCredentialsError(), PermissionError),
    (client_error(404), FileNotFoundError),
    (client_error(412), FileExistsError),
    (client_error(400), OSError),
    (PermissionError("refused"), PermissionError),
]


@pytest.mark.parametrize("error", PASSING, ids=lambda error: type(error).__name__)
def test_an_outage_is_known_whoever_tells_of_it(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "LONGEST_PAUSE_SECONDS", 0.01)
    left = [error, error]

    @patient
    def operation(path: str) -> str:
        if left:
            raise left.pop()
        return path

    assert operation("s3://bucket/file") == "s3://bucket/file"


@pytest.mark.parametrize(("error", "kind"), LASTING, ids=lambda part: getattr(part, "__name__", type(part).__name__))
def test_what_lasts_is_an_error_of_pythons_that_keeps_what_was_said(error: Exception, kind: type[OSError]) -> None:
    @patient
    def operation(path: str) -> None:
        raise error

    with pytest.raises(kind) as raised:
        operation("s3://bucket/file")
    assert raised.value.errno and str(error) in str(raised.value)


def test_a_full_disk_is_told_at_once(tmp_path: Path) -> None:
    @patient
    def operation(path: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left") as raised:
        operation(str(tmp_path))
    assert raised.value.errno == errno.ENOSPC


def test_an_operation_within_another_fails_with_the_same_error() -> None:
    @patient
    def inner(path: str) -> None:
        raise FileNotFoundError(errno.ENOENT, "not there", path)

    with pytest.raises(FileNotFoundError, match="not there"):
        patient(inner)("here")


def test_a_mistake_in_a_program_is_no_failure_of_storage() -> None:
    @patient
    def operation(path: str) -> None:
        raise KeyError(path)

    with pytest.raises(KeyError):
        operation("here")
