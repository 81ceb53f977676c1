"""Score raw rows: ``spark-submit jobs/score.py conf/fashion_mnist.yaml [section.key=value ...]``."""

import sys

from sparkdl import main

if __name__ == "__main__":
    main(["score", *sys.argv[1:]])
