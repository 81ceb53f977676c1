"""Lighter forms of a model: ``spark-submit jobs/compress.py conf/fashion_mnist.yaml [section.key=value ...]``."""

import sys

from sparkdl import main

if __name__ == "__main__":
    main(["compress", *sys.argv[1:]])
