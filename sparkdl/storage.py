"""Where a path leads: one spelling for fsspec (driver, ranks and tasks) and one for Spark's JVM."""

import hashlib
import uuid
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa

__all__ = ["PARTIAL", "hash_folder", "is_local", "join", "locate", "spark_url", "write_file"]

PARTIAL = ".part"
"""How the name of a file ends that is still being written; it also begins with a dot, so that readers pass it by."""
_DBFS_MOUNT = Path("/dbfs")
"""On Databricks, the folder under which ``dbfs:/`` is mounted on the driver and on every executor."""


def locate(path: str) -> tuple[Any, str]:
    """The fsspec filesystem of a path or URI, and the path on it. Runs anywhere."""
    if path.startswith("dbfs:/") and _DBFS_MOUNT.is_dir():
        path = str(_DBFS_MOUNT / path.removeprefix("dbfs:").lstrip("/"))
    filesystem, located = fsspec.url_to_fs(path)
    return filesystem, str(located).rstrip("/")


def join(path: str, *parts: str) -> str:
    """A path below another one; both may be URIs."""
    return "/".join([path.rstrip("/"), *parts])


def spark_url(path: str) -> str:
    """The same place as Spark and Petastorm spell it: local paths get an explicit ``file://``."""
    if path.startswith("dbfs:/"):
        return path
    filesystem, located = locate(path)
    return f"file://{located}" if is_local(filesystem) else path  # as it is: Hadoop would not decode a %20


def is_local(filesystem: Any) -> bool:
    """Whether it is the operating system's: a file or a folder is renamed in one step there."""
    protocol = filesystem.protocol
    return "file" in ((protocol,) if isinstance(protocol, str) else protocol)


def hash_folder(path: str) -> str:
    """SHA-256 of the names and contents of a folder's files. Raises FileNotFoundError if it has none.

    Hidden ones do not count, nor those that begin with an underscore: Hadoop's copies leave out or add some.
    """
    filesystem, located = locate(path)
    digest = hashlib.sha256()
    found = sorted(str(file) for file in filesystem.find(located))
    files = [file for file in found if not file.rpartition("/")[2].startswith((".", "_"))]
    if not files:
        raise FileNotFoundError(path)
    for file in files:
        digest.update(file.removeprefix(located).encode())
        digest.update(hashlib.sha256(filesystem.cat_file(file)).digest())
    return digest.hexdigest()


def write_file(path: str, content: pa.Buffer) -> None:
    """Write a whole file or none. Runs in tasks, which may be killed, or run twice at once and write the same."""
    filesystem, located = locate(path)
    if not is_local(filesystem):
        filesystem.pipe_file(located, content.to_pybytes())  # an object is there once all of it is
        return
    partial = Path(located).with_name(f".{uuid.uuid4().hex}{PARTIAL}")
    try:
        partial.write_bytes(content)
        partial.replace(located)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
