"""The files that Spark reads, as Python spells their paths."""

import posixpath
from collections.abc import Sequence
from urllib.parse import unquote

__all__ = ["file_paths"]


def file_paths(urls: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """The folder that all files are in, and their paths within it, in order. ``urls`` are of ``DataFrame.inputFiles``.

    Of local files, the signs in a URL stand for others (``%20`` for a space), and no slashes for a host.
    """
    paths = sorted(f"/{unquote(url)[5:].lstrip('/')}" if url.startswith("file:") else url for url in urls)
    if not paths:
        return "", ()
    folder = posixpath.dirname(paths[0]) if len(paths) == 1 else posixpath.commonpath(paths)
    scheme, separator, _ = paths[0].partition("://")
    if separator and "://" not in folder:  # which is a path of two parts to Python
        folder = folder.replace(f"{scheme}:/", f"{scheme}://", 1)
    return folder, tuple(path.removeprefix(folder).lstrip("/") for path in paths)
