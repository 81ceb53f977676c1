"""Resolves paths and URIs: one spelling for fsspec (driver, ranks and tasks) and one for Spark's JVM."""

import os
import re
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from sparkdl.errors import StorageError

__all__ = ["PATTERN_SIGNS", "cache_folder", "join", "local_path", "locate", "renames", "scheme", "spark_url"]

_DBFS_MOUNT = Path("/dbfs")
"""On Databricks, the folder under which ``dbfs:/`` is mounted on the driver and on every executor."""
PATTERN_SIGNS = "*?[]{}"
"""The characters that make a path of Hadoop a pattern."""
_LOCAL = {"file", "local"}
_HDFS = {"hdfs", "arrow_hdfs", "webhdfs", "webHDFS"}


def locate(path: str) -> tuple[Any, str]:
    """The fsspec filesystem of a path or URI, and the path on it. Runs anywhere.

    Listings are not cached, because other processes write to the same folders. Raises
    :class:`~sparkdl.errors.StorageError` for a scheme that no installed package supports.
    """
    if path.startswith("dbfs:/") and _DBFS_MOUNT.is_dir():
        path = str(_DBFS_MOUNT / path.removeprefix("dbfs:").lstrip("/"))
    try:
        # Clients of HDFS do not cache listings, and one of them would take this option for a setting of Hadoop.
        options = {} if scheme(path) in _HDFS else {"use_listings_cache": False}
        filesystem, located = fsspec.url_to_fs(path, **options)
    except (ImportError, ValueError) as error:
        raise StorageError(
            f"{path}: {str(error).rstrip('.')}; install the package for this storage on driver and executors, or choose"
            " another place"
        ) from None
    return filesystem, str(located).rstrip("/")


def scheme(path: str) -> str:
    """The part of a path before ``://``; ``file`` if it has no scheme."""
    return path.partition("://")[0] if "://" in path else "file"


def join(path: str, *parts: str) -> str:
    """A path below another one; both may be URIs."""
    return "/".join([path.rstrip("/"), *parts])


def spark_url(path: str, *, literal: bool = False) -> str:
    """The path as Spark spells it: local paths get an explicit ``file://``.

    Spark's readers interpret some characters as a pattern; ``literal`` escapes them. Its writers do not.
    """
    local = None if path.startswith("dbfs:/") else local_path(path)
    url = f"file://{local}" if local else path  # without percent-encoding, which Hadoop would not decode
    return re.sub(rf"([{re.escape(PATTERN_SIGNS)}])", r"\\\1", url) if literal else url


def local_path(path: str) -> Path | None:
    """The path on this machine's file system; None if the path is remote."""
    if path.startswith("dbfs:/") or scheme(path) in _LOCAL:
        filesystem, located = locate(path)
        return Path(located) if isinstance(filesystem, LocalFileSystem) else None
    return None


def cache_folder() -> Path:
    """The user's folder for files that can be made or downloaded again. It may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sparkdl"


def renames(path: str) -> bool:
    """Whether storage renames files and folders atomically. Object stores copy, but show only complete files."""
    return local_path(path) is not None or scheme(path) in _HDFS
