"""Random faults at random steps of real runs on a real cluster: nothing may be lost."""

from sparkdl.benchmarks.faults.run import run

__all__ = ["run"]
