"""What working columns are called, so that raw ones may have any other name."""

from collections.abc import Iterable

from sparkdl.errors import DataError

__all__ = ["WORKING", "check_names"]

WORKING = "__sparkdl_"
"""What the names of working columns begin with, and no raw column's that is read."""


def check_names(names: Iterable[str]) -> None:
    """Raise :class:`DataError` for a raw column that could be taken for a working one."""
    for name in names:
        if name.lower().startswith(WORKING):
            raise DataError(f"column {name!r} begins with {WORKING}, which is kept for working columns; rename it")
