"""Turn a raw table into a dataset: ``spark-submit jobs/prepare.py conf/fashion_mnist.yaml [section.key=value ...]``."""

import sys

from sparkdl import main

if __name__ == "__main__":
    main(["prepare", *sys.argv[1:]])
