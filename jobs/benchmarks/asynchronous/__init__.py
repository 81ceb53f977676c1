"""Asynchronous training compared with synchronous training, and the transport of its parameters with a plain socket."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.report import Report

__all__ = ["run"]


def run(
    *, parts: Sequence[str] = (), results: Path | None = None, seeds: int = 3, tries: int = 3, quick: bool = False
) -> Iterator[Report]:
    """Measure, or read what was measured, and print; see :mod:`benchmarks.asynchronous.experiment`."""
    from benchmarks.asynchronous.experiment import QUICK, WHOLE, run

    return run(QUICK if quick else WHOLE, parts=parts, results=results, seeds=seeds, tries=tries)
