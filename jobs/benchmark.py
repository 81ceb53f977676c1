"""Measure speed beside the usual alternatives: ``spark-submit jobs/benchmark.py [name ...] [--json]``."""

import sys

from sparkdl import main

if __name__ == "__main__":
    main(["benchmark", *sys.argv[1:]])
