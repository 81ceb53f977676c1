"""Very many classes: quality beside other methods, speed-up with slots, scoring, and data of ODP's shape."""

from sparkdl.benchmarks.extreme.run import run

__all__ = ["run"]
