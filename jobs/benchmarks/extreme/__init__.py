"""Very many classes: quality beside other methods, speed-up with slots, scoring, and data of ODP's shape."""

from collections.abc import Iterator, Sequence

from benchmarks.report import Report

__all__ = ["run"]


def run(data: Sequence[str] = (), kinds: Sequence[str] = ()) -> Iterator[Report]:
    """One table after another; see :mod:`benchmarks.extreme.tables`, which tasks have no use for."""
    from benchmarks.extreme.tables import run

    return run(data, kinds)
