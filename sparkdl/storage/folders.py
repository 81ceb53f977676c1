"""Folders on any storage, and all files in them: listed, moved, copied and hashed. Runs anywhere.

Each file is retried during outages; errors are those of :mod:`sparkdl.storage.files`.
"""

import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass
from errno import EEXIST, EISDIR, ENOENT, ENOTDIR, ENOTEMPTY
from pathlib import Path

from sparkdl.storage.failures import patient
from sparkdl.storage.files import PARTIAL, read_file, remove
from sparkdl.storage.paths import local_path, locate, renames

__all__ = [
    "DirEntry",
    "download_files",
    "hash_folder",
    "list_files",
    "list_folder",
    "make_folder",
    "move_files",
    "remove_unfinished",
    "rename_folder",
    "upload_files",
]

_TAKEN = {EEXIST, EISDIR, ENOTDIR, ENOTEMPTY}
"""The error codes of operating systems for a rename to a name that is already taken."""


@dataclass(frozen=True)
class DirEntry:
    """A file or a folder in a folder."""

    name: str
    size: int
    is_folder: bool


@patient
def list_folder(path: str) -> list[DirEntry]:
    """The entries of a folder, sorted by name. Empty if there is no such folder, as object stores have no folders."""
    filesystem, located = locate(path)
    try:
        found = {str(entry["name"]).rstrip("/"): entry for entry in filesystem.ls(located, detail=True)}
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [
        DirEntry(name.rpartition("/")[2], int(entry["size"] or 0), entry["type"] == "directory")
        for name, entry in sorted(found.items())
        if name != located  # the listing of a file is itself, and some stores list a folder among its entries
    ]


def list_files(path: str) -> list[str]:
    """All files below a folder, as paths relative to it. Links to folders are not followed."""
    try:
        return [name.lstrip("/") for name in _suffixes(path)]
    except FileNotFoundError:
        return []


@patient
def make_folder(path: str) -> None:
    """Make a folder and the missing ones above it. Does nothing on object stores, which have no folders."""
    filesystem, located = locate(path)
    if renames(path):
        filesystem.makedirs(located, exist_ok=True)


def remove_unfinished(path: str) -> None:
    """Remove the unfinished files of killed processes from a folder. Call it only while no process writes there."""
    with suppress(FileNotFoundError):
        for name in _suffixes(path):
            if name.endswith(PARTIAL):
                remove(path + name)


@patient
def rename_folder(path: str, target: str) -> bool:
    """Rename a folder within its parent folder, in one atomic step; False if the new name is taken.

    For local file systems and HDFS. If several processes rename folders to the same name at once, one succeeds. The old
    name must be unique: if the new name is taken, HDFS moves the folder *into* the existing one, where this function
    finds it by its old name and removes it.
    """
    (filesystem, located), (_, place) = locate(path), locate(target)
    try:
        if local_path(path):
            Path(located).rename(place)  # fails if the target is a folder with content, and never moves into it
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
    return not filesystem.exists(located)  # True also if an outage lost the answer to an earlier, successful try


def move_files(path: str, target: str) -> None:
    """Move a file, or all files of a folder, one by one, which also works on object stores."""
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


def hash_folder(path: str) -> str:
    """SHA-256 of the names and contents of a folder's files. Raises FileNotFoundError if it has none.

    Files whose names begin with a dot or an underscore do not count: Hadoop leaves them out of copies, or adds some.
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
def _suffixes(path: str) -> list[str]:
    """For each file at or below the path, the rest of its path: ``/name`` in a folder, empty for a file itself."""
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
        if not filesystem.exists(place):  # otherwise an earlier try has copied and removed it
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
