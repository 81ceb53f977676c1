"""Checks that files of a dataset have the content that the card describes; messages for missing and altered files."""

import hashlib

from sparkdl.errors import DatasetError
from sparkdl.storage import read_file

__all__ = ["REPAIR", "altered", "missing", "read_unaltered"]

REPAIR = "Restore it, or remove the dataset and prepare it again."


def missing(path: str) -> str:
    """The message of an error about a missing file."""
    return f"{path} is missing. {REPAIR}"


def altered(path: str) -> str:
    """The message of an error about a file whose content differs from what was written."""
    return f"{path} was altered: its SHA-256 is not the card's. {REPAIR}"


def read_unaltered(path: str, sha256: str) -> bytes:
    """The content of a file that must have this hash. Runs anywhere.

    Raises :class:`DatasetError` if it is missing or altered.
    """
    try:
        content = read_file(path)
    except FileNotFoundError:
        raise DatasetError(missing(path)) from None
    if hashlib.sha256(content).hexdigest() != sha256:
        raise DatasetError(altered(path))
    return content
