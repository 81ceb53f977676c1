"""Files on any storage; paths may be URIs. Everything here runs anywhere, and retries during outages.

Errors are Python's own: FileNotFoundError, PermissionError, TimeoutError if an outage lasts, and OSError for a full
disk and all others (:mod:`sparkdl.storage.failures`).
"""

import hashlib
import io
import os
import uuid
from contextlib import suppress
from errno import EEXIST
from pathlib import Path

from typing_extensions import Buffer

from sparkdl.errors import StorageError
from sparkdl.storage.failures import patient
from sparkdl.storage.paths import local_path, locate, renames

__all__ = [
    "PARTIAL",
    "check_writable",
    "claim_file",
    "exists",
    "expand",
    "file_size",
    "glob",
    "hash_file",
    "open_file",
    "read_file",
    "remove",
    "write_file",
]

PARTIAL = ".part"
"""The ending of the name of an unfinished file. Such a name also begins with a dot, so that readers ignore the file."""
_CHUNK_BYTES = 4 << 20
"""The bytes per request for a large file."""


@patient
def exists(path: str) -> bool:
    """Whether there is a file or a folder at this path."""
    filesystem, located = locate(path)
    return bool(filesystem.exists(located))


def file_size(path: str) -> int | None:
    """The size of a file in bytes; None if there is no such file."""
    try:
        return _size(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


@patient
def glob(path: str) -> list[str]:
    """The paths that match a pattern, each with the scheme of the pattern."""
    filesystem, located = locate(path)
    prefix = path.removesuffix(located) if path.endswith(located) else ""
    return sorted(f"{prefix}{found}" for found in filesystem.glob(located))


def expand(path: str) -> list[str]:
    """The path itself if it exists, whatever characters its name has; else the paths that match it as a pattern."""
    return [path] if exists(path) else glob(path)


@patient
def read_file(path: str, *, start: int | None = None, end: int | None = None) -> bytes:
    """A file's bytes, or those from ``start`` up to ``end``."""
    filesystem, located = locate(path)
    content: bytes = filesystem.cat_file(located, start=start, end=end)
    return content


def open_file(path: str) -> io.BufferedReader:
    """A file as a stream to read and seek in."""
    local = local_path(path)
    return local.open("rb") if local else io.BufferedReader(_RemoteFile(path), _CHUNK_BYTES)


@patient
def write_file(path: str, content: Buffer, *, makes_folder: bool = True) -> None:
    """Write a file completely or not at all; an existing file is replaced.

    Several processes may write the same file at once, and any of them may be killed. With ``makes_folder`` false, a
    missing folder is an error: whoever removed it does not want it to come back.
    """
    filesystem, located = locate(path)
    if not renames(path):
        filesystem.pipe_file(located, bytes(content))  # an object only becomes visible when it is complete
        return
    folder = located.rpartition("/")[0]
    partial = _partial(located)
    try:
        if makes_folder:
            filesystem.makedirs(folder, exist_ok=True)
        with filesystem.open(partial, "wb") as stream:
            stream.write(content)
        if local_path(path):
            Path(partial).replace(located)
        else:
            with suppress(FileNotFoundError):
                filesystem.rm(located)  # HDFS does not rename onto a file
            filesystem.mv(partial, located)
    except BaseException:
        with suppress(Exception):  # the first error is the one to report; an unfinished file costs only space
            filesystem.rm(partial)
        raise


def check_writable(folder: str) -> None:
    """Write a small file into a folder and remove it again; if there is no such folder, in the nearest one above it.

    The path is absolute. Raises :class:`~sparkdl.errors.StorageError` if that fails.
    """
    place = folder.rstrip("/")
    while place and renames(place) and not exists(place):
        place = place.rpartition("/")[0]  # object stores have no folders, but rights may depend on the prefix
    probe = f"{place}/.{uuid.uuid4().hex}{PARTIAL}"
    try:
        write_file(probe, b"", makes_folder=False)
        remove(probe)
    except OSError as error:
        raise StorageError(f"cannot write to {folder}: {error.strerror or error}") from None


def claim_file(path: str, content: bytes) -> bool:
    """Write a file unless it exists. Returns whether the file has this content afterwards.

    Object stores decide atomically which caller is first (on S3: If-None-Match). Each caller must pass a unique
    content: if an outage loses the answer to a successful write, the content shows which caller wrote the file.
    """
    with suppress(FileExistsError):
        _create_file(path, content)
    return read_file(path) == content


@patient
def remove(path: str) -> None:
    """Remove a file, or a folder with all its content, if it exists."""
    filesystem, located = locate(path)
    while filesystem.exists(located):
        # The missing file may be one in the folder that another process renamed while the folder was being removed.
        with suppress(FileNotFoundError, NotADirectoryError):
            filesystem.rm(located, recursive=True)


def hash_file(path: str) -> str:
    """SHA-256 of a file."""
    with open_file(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@patient
def _create_file(path: str, content: bytes) -> None:
    """Write a new file. Raises FileExistsError if there already is one."""
    filesystem, located = locate(path)
    if local := local_path(path):
        with local.open("xb") as stream:
            stream.write(content)
    elif renames(path):
        partial = _partial(located)
        with filesystem.open(partial, "wb") as stream:
            stream.write(content)
        try:
            if filesystem.exists(located):
                raise FileExistsError(EEXIST, os.strerror(EEXIST), path)
            filesystem.mv(partial, located)  # HDFS refuses to rename onto a file
        except BaseException:
            with suppress(Exception):
                filesystem.rm(partial)
            raise
    else:
        filesystem.pipe_file(located, content, mode="create")


def _partial(located: str) -> str:
    """The path at which a file is written before it is renamed."""
    return f"{located.rpartition('/')[0]}/.{uuid.uuid4().hex}{PARTIAL}"


@patient
def _size(path: str) -> int:
    filesystem, located = locate(path)
    return int(filesystem.size(located))


class _RemoteFile(io.RawIOBase):
    """A file that is read in pieces, each with its own retries during outages."""

    def __init__(self, path: str) -> None:
        self._path, self._size, self._at = path, _size(path), 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: Buffer) -> int:
        view = memoryview(buffer).cast("B")
        end = min(self._at + len(view), self._size)
        content = read_file(self._path, start=self._at, end=end) if self._at < end else b""
        view[: len(content)] = content
        self._at += len(content)
        return len(content)

    def readall(self) -> bytes:
        """The rest of the file, in one request: Python would read 8 KiB at a time."""
        content = read_file(self._path, start=self._at, end=self._size) if self._at < self._size else b""
        self._at += len(content)
        return content
