"""Random faults at random steps of real runs on a real cluster: nothing may be lost."""

from benchmarks.report import Report

__all__ = ["run"]


def run(rounds: int = 100, seed: int = 0, backend: str = "auto") -> Report:
    """Inject faults; see :mod:`benchmarks.faults.run`, which the ranks have no use for."""
    from benchmarks.faults.run import run

    return run(rounds, seed, backend)
