"""Look for what will not work: ``spark-submit jobs/doctor.py conf/fashion_mnist.yaml [section.key=value ...]``."""

import sys

from sparkdl import main

if __name__ == "__main__":
    main(["doctor", *sys.argv[1:]])
