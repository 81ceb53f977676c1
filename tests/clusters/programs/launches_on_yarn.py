"""What ``test_yarn_launches.py`` submits: warm launches, then a rank that takes more memory than its container has."""

import json
import time
from functools import partial

from benchmarks.launch import LAUNCHES, launch_by_sparkdl, measure
from sparkdl.cluster import Rank, get_session, run_ranks, wait_for_slots
from sparkdl.collectives import TorchBackend
from sparkdl.errors import SparkdlError

PIECE = 50_000_000  # bytes
PIECES = 45  # half of them are too much


def grow(rank: Rank) -> int:
    print(f"rank {rank.rank} says this in its container")
    pieces = []
    while rank.rank == 1 and len(pieces) < PIECES:
        pieces.append(b"x" * PIECE)
        time.sleep(0.1)
    time.sleep(60)  # it hears of the other one's end before
    return len(pieces)


spark = get_session()
wait_for_slots(spark, 2, timeout=180)
report = {"seconds": measure(partial(launch_by_sparkdl, spark, TorchBackend()), LAUNCHES)}
try:
    run_ranks(grow, 2, spark=spark, log_verbosity="log_callback_only")
except SparkdlError as error:
    report |= {"error": type(error).__name__, "message": str(error)}
print(json.dumps(report | {"application": spark.sparkContext.applicationId}))
