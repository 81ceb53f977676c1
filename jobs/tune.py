"""Search for the best settings: ``spark-submit jobs/tune.py conf/tuning.yaml [section.key=value ...]``."""

import sys

from sparkdl import main

if __name__ == "__main__":
    main(["tune", *sys.argv[1:]])
