"""Train hashed meta-models: ``spark-submit jobs/train_extreme.py conf/wordnet.yaml [section.key=value ...]``."""

import sys

from sparkdl import main

if __name__ == "__main__":
    main(["train-extreme", *sys.argv[1:]])
