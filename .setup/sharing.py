"""Two environments of one checkout keep each file that is the same in both once, by hard links."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

__all__ = ["share"]


def share(environment: Path, other: Path) -> int:
    """Replace files by hard links to those of another environment; returns the bytes that this frees.

    A file is the same where both environments have the package in the same version, with the same SHA-256 in what pip
    recorded. Where links cannot be made, as between two disks, files stay as they are. pip never writes into a file
    that is there, so that either environment may be changed by it, or removed.
    """
    freed = 0
    theirs = {metadata.name: metadata for metadata in _packages(other)}
    for metadata in _packages(environment):
        if metadata.name not in theirs:
            continue
        recorded = dict(_files(theirs[metadata.name]))
        for name, sha256 in _files(metadata):
            if recorded.get(name) == sha256:
                with suppress(OSError):
                    freed += _link(metadata.parent / name, theirs[metadata.name].parent / name)
    return freed


def _packages(environment: Path) -> Iterator[Path]:
    """What pip keeps of each package: a folder that is called by its name and version."""
    return environment.glob("lib/python*/site-packages/*.dist-info")


def _files(metadata: Path) -> Iterator[tuple[str, str]]:
    """A package's files below ``site-packages``, with their hashes; scripts lie elsewhere, and name the environment."""
    with suppress(FileNotFoundError), (metadata / "RECORD").open(newline="") as record:
        for name, sha256, *_ in csv.reader(record):
            if sha256 and not name.startswith(("..", "/")) and not name.startswith(f"{metadata.name}/"):
                yield name, sha256


def _link(path: Path, same: Path) -> int:
    """The bytes that are freed; none where one of them was altered since, or they are one file already."""
    ours, theirs = path.lstat(), same.lstat()
    if ours.st_size != theirs.st_size or os.path.samestat(ours, theirs):
        return 0
    new = path.with_name(f"{path.name}.shared")
    new.unlink(missing_ok=True)
    new.hardlink_to(same)
    new.replace(path)
    return ours.st_size
