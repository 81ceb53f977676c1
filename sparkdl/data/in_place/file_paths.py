"""Turns the URLs of files that Spark reads into paths for Python."""

import posixpath
from collections.abc import Sequence
from urllib.parse import unquote

__all__ = ["file_paths"]


def file_paths(urls: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """The common folder of all files, and their paths within it, in order. ``urls`` is ``DataFrame.inputFiles``.

    URLs of local files are percent-encoded (``%20`` for a space), and have no host.
    """
    paths = sorted(f"/{unquote(url)[5:].lstrip('/')}" if url.startswith("file:") else url for url in urls)
    if not paths:
        return "", ()
    folder = posixpath.dirname(paths[0]) if len(paths) == 1 else posixpath.commonpath(paths)
    scheme, separator, _ = paths[0].partition("://")
    if separator and "://" not in folder:  # a scheme without a host: Python needs two more slashes
        folder = folder.replace(f"{scheme}:/", f"{scheme}://", 1)
    return folder, tuple(path.removeprefix(folder).lstrip("/") for path in paths)
