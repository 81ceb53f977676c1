"""Files and folders on any storage; paths may be URIs. Everything here runs anywhere, and outages are waited out.

Failures are Python's own: FileNotFoundError, PermissionError, OSError for a full disk and the rest, and TimeoutError
where an outage lasts (:mod:`sparkdl.storage.failures`).
"""

import hashlib
import io
import os
import uuid
from contextlib import suppress
from dataclasses import dataclass
from errno import EEXIST, EISDIR, ENOENT, ENOTDIR, ENOTEMPTY
from pathlib import Path

from typing_extensions import Buffer

from sparkdl.errors import StorageError
from sparkdl.storage.failures import patient
from sparkdl.storage.paths import local_path, locate, renames

__all__ = [
    "PARTIAL",
    "DirEntry",
    "check_writable",
    "claim_file",
    "download_files",
    "exists",
    "expand",
    "file_size",
    "glob",
    "hash_file",
    "hash_folder",
    "list_files",
    "list_folder",
    "make_folder",
    "move_files",
    "open_file",
    "read_file",
    "remove",
    "remove_unfinished",
    "rename_folder",
    "upload_files",
    "write_file",
]

PARTIAL = ".part"
"""How the name of a file ends that is still being written; it also begins with a dot, so that readers pass it by."""
_CHUNK_BYTES = 4 << 20
"""Asked for at a time from a large file."""
_TAKEN = {EEXIST, EISDIR, ENOTDIR, ENOTEMPTY}
"""What an operating system says when the place of a folder that is renamed is not free."""


@dataclass(frozen=True)
class DirEntry:
    """A file or a folder in a folder."""

    name: str
    size: int
    is_folder: bool


@patient
def exists(path: str) -> bool:
    """Whether there is a file or a folder."""
    filesystem, located = locate(path)
    return bool(filesystem.exists(located))


def file_size(path: str) -> int | None:
    """How many bytes a file has; None where there is none."""
    try:
        return _size(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


@patient
def list_folder(path: str) -> list[DirEntry]:
    """What is in a folder, by name. Nothing is, where there is none: object stores have no empty folders."""
    filesystem, located = locate(path)
    try:
        found = {str(entry["name"]).rstrip("/"): entry for entry in filesystem.ls(located, detail=True)}
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [
        DirEntry(name.rpartition("/")[2], int(entry["size"] or 0), entry["type"] == "directory")
        for name, entry in sorted(found.items())
        if name != located  # a file's listing is itself, and some stores list a folder with its content
    ]


@patient
def glob(path: str) -> list[str]:
    """The paths that fit a pattern, spelled as it is."""
    filesystem, located = locate(path)
    prefix = path.removesuffix(located) if path.endswith(located) else ""
    return sorted(f"{prefix}{found}" for found in filesystem.glob(located))


def expand(path: str) -> list[str]:
    """The path where there is something, whatever signs are in its name; else those that fit it as a pattern."""
    return [path] if exists(path) else glob(path)


def list_files(path: str) -> list[str]:
    """All files below a folder, by their paths within it. Links to folders are not followed."""
    try:
        return [name.lstrip("/") for name in _suffixes(path)]
    except FileNotFoundError:
        return []


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
    """Write a whole file or none, in the place of what is there. Several may write the same; any may be killed.

    With ``makes_folder`` false, a folder that is not there is an error: whoever removed it wants nothing there.
    """
    filesystem, located = locate(path)
    if not renames(path):
        filesystem.pipe_file(located, bytes(content))  # an object is there once all of it is
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
        with suppress(Exception):  # what went wrong is told; what stays there costs only space
            filesystem.rm(partial)
        raise


def check_writable(folder: str) -> None:
    """Write a small file into a folder, or into the nearest one above that is there, and remove it.

    The path is absolute. Raises :class:`~sparkdl.errors.StorageError` where that fails.
    """
    place = folder.rstrip("/")
    while place and renames(place) and not exists(place):
        place = place.rpartition("/")[0]  # object stores have no folders, but rights that differ below a prefix
    probe = f"{place}/.{uuid.uuid4().hex}{PARTIAL}"
    try:
        write_file(probe, b"", makes_folder=False)
        remove(probe)
    except OSError as error:
        raise StorageError(f"cannot write to {folder}: {error.strerror or error}") from None


def claim_file(path: str, content: bytes) -> bool:
    """Write a file unless there is one; whether this very content is in it then.

    Object stores decide by themselves who was first (on S3: If-None-Match). Content that nobody else writes tells a
    claim of one's own, whose answer an outage swallowed, from another's.
    """
    with suppress(FileExistsError):
        _create_file(path, content)
    return read_file(path) == content


@patient
def make_folder(path: str) -> None:
    """Make a folder and those above it where they are missing; object stores have none, and need none."""
    filesystem, located = locate(path)
    if renames(path):
        filesystem.makedirs(located, exist_ok=True)


@patient
def remove(path: str) -> None:
    """Remove a file, or a folder with all that is in it, if it is there."""
    filesystem, located = locate(path)
    while filesystem.exists(located):
        # What is missing may be a file of the folder, which somebody renamed while the folder was being removed.
        with suppress(FileNotFoundError, NotADirectoryError):
            filesystem.rm(located, recursive=True)


def remove_unfinished(path: str) -> None:
    """Remove what processes that were killed had begun to write in a folder. Call it when no process writes there."""
    with suppress(FileNotFoundError):
        for name in _suffixes(path):
            if name.endswith(PARTIAL):
                remove(path + name)


@patient
def rename_folder(path: str, target: str) -> bool:
    """Rename a folder within the folder that it is in, in one step; False where that name is taken.

    On local file systems and HDFS, where several may do it at once and one wins. The old name has to be unique: HDFS
    moves a folder *into* one that is there, from where only it is removed.
    """
    (filesystem, located), (_, place) = locate(path), locate(target)
    try:
        if local_path(path):
            Path(located).rename(place)  # never onto a folder that holds anything, nor into one
        else:
            filesystem.mv(located, place)
    except OSError as error:
        if error.errno in _TAKEN:
            return False
        if not filesystem.exists(place):
            raise
    strayed = f"{place}/{located.rpartition('/')[2]}"
    if filesystem.exists(strayed):
        filesystem.rm(strayed, recursive=True)
        return False
    return not filesystem.exists(located)  # not after a try that an outage left without its answer, either


def move_files(path: str, target: str) -> None:
    """Move a file, or all files of a folder, one by one: what object stores can do."""
    for name in _suffixes(path):
        _move_file(path + name, target + name)


def download_files(path: str, target: Path) -> None:
    """Copy a file, or all files of a folder, to a place on this machine."""
    for name in _suffixes(path):
        _download_file(path + name, Path(f"{target}{name}"))


def upload_files(path: str, source: Path) -> None:
    """Copy all files of a folder of this machine to a folder."""
    for file in source.rglob("*"):
        if file.is_file():
            _upload_file(f"{path}/{file.relative_to(source).as_posix()}", file)


def hash_file(path: str) -> str:
    """SHA-256 of a file."""
    with open_file(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def hash_folder(path: str) -> str:
    """SHA-256 of the names and contents of a folder's files. Raises FileNotFoundError if it has none.

    Hidden ones do not count, nor those that begin with an underscore: Hadoop's copies leave out or add some.
    """
    digest = hashlib.sha256()
    files = [name for name in _suffixes(path) if not name.rpartition("/")[2].startswith((".", "_"))]
    if not files:
        raise FileNotFoundError(path)
    for name in files:
        digest.update(name.encode())
        digest.update(hashlib.sha256(read_file(path + name)).digest())
    return digest.hexdigest()


@patient
def _create_file(path: str, content: bytes) -> None:
    """Raises FileExistsError where there is one."""
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
    """Where a file is written before it takes its place."""
    return f"{located.rpartition('/')[0]}/.{uuid.uuid4().hex}{PARTIAL}"


@patient
def _suffixes(path: str) -> list[str]:
    """What follows the path in that of each file below it: ``/name`` in a folder, nothing for a file."""
    filesystem, located = locate(path)
    if not (found := filesystem.find(located)):
        raise FileNotFoundError(ENOENT, os.strerror(ENOENT), path)
    return sorted(str(file).removeprefix(located) for file in found)


@patient
def _move_file(path: str, target: str) -> None:
    (filesystem, located), (_, place) = locate(path), locate(target)
    try:
        filesystem.cp_file(located, place)
        filesystem.rm_file(located)
    except FileNotFoundError:
        if not filesystem.exists(place):  # otherwise a try before this one came so far
            raise


@patient
def _download_file(path: str, target: Path) -> None:
    filesystem, located = locate(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    filesystem.get_file(located, str(target))


@patient
def _upload_file(path: str, source: Path) -> None:
    filesystem, located = locate(path)
    make_folder(path.rpartition("/")[0])
    filesystem.put_file(str(source), located)


@patient
def _size(path: str) -> int:
    filesystem, located = locate(path)
    return int(filesystem.size(located))


class _RemoteFile(io.RawIOBase):
    """A file read piece by piece, so that an outage between two of them is waited out, too."""

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
        """What is left, in one request: Python would ask for 8 KiB at a time."""
        content = read_file(self._path, start=self._at, end=self._size) if self._at < self._size else b""
        self._at += len(content)
        return content
