"""Train a network: ``spark-submit jobs/train.py conf/fashion_mnist.yaml [section.key=value ...]``."""

import sys

from sparkdl import main

if __name__ == "__main__":
    main(["train", *sys.argv[1:]])
