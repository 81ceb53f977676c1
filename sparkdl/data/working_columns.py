"""The names of working columns, which raw columns must not have."""

from collections.abc import Iterable

from sparkdl.errors import DataError

__all__ = ["WORKING", "check_names"]

WORKING = "__sparkdl_"
"""The prefix of the names of working columns. No raw column that is read may begin with it."""


def check_names(names: Iterable[str]) -> None:
    """Raise :class:`DataError` for a raw column that could be taken for a working one."""
    for name in names:
        if name.lower().startswith(WORKING):
            raise DataError(f"column {name!r} begins with {WORKING}, which is reserved for working columns; rename it")
