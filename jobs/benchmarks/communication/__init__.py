"""Every way to agree, on hosts of its own that links of a given bandwidth join: accuracy over seconds."""

from collections.abc import Iterator
from pathlib import Path

from benchmarks.report import Report

__all__ = ["run"]


def run(*, results: Path | None = None, seeds: int = 3, tries: int = 2, quick: bool = False) -> Iterator[Report]:
    """Measure, or read what was measured, then draw and print; see :mod:`benchmarks.communication.experiment`."""
    from benchmarks.communication.experiment import QUICK, WHOLE, run

    return run(QUICK if quick else WHOLE, results=results, seeds=seeds, tries=tries)
