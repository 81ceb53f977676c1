"""Where a path leads: one spelling for fsspec (driver, ranks and tasks) and one for Spark's JVM."""

from pathlib import Path
from typing import Any

import fsspec

__all__ = ["join", "locate", "spark_url"]

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
    if "file" in _protocols(filesystem):
        return Path(located).as_uri()
    return path


def _protocols(filesystem: Any) -> tuple[str, ...]:
    protocol = filesystem.protocol
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)
