"""Run a script on ranks: ``spark-submit jobs/run.py script.py --num-ranks 4 -- arguments``."""

import sys

from sparkdl import main

if __name__ == "__main__":
    main(["run", *sys.argv[1:]])
