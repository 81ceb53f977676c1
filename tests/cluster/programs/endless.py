"""What tests/cluster/test_endings.py submits: ranks without an end, begun again after each end from outside."""

import json
import sys
import time
from collections.abc import Callable

from sparkdl.cluster import Rank, get_session, run_ranks
from sparkdl.errors import RunCancelledError


def work(rank: Rank) -> None:
    rank.send("ready")
    while not rank.stop_requested:
        rank.beat(0)
        time.sleep(0.02)
    rank.send("saved")


def report(**what: object) -> None:
    print(json.dumps(what), flush=True)


def repeat(name: str, on_ready: Callable[[], None] = lambda: None) -> None:
    def receive(rank: int, message: dict) -> None:
        report(run=name, rank=rank, what=message["kind"])
        if message["kind"] == "ready" and rank == 0:
            on_ready()

    try:
        run_ranks(work, 2, spark=spark, on_message=receive)
    except (KeyboardInterrupt, RunCancelledError) as error:
        report(run=name, what=type(error).__name__, message=str(error))


spark = get_session()
repeat("interrupted")
repeat("cancelled", lambda: spark.sparkContext.cancelAllJobs())
repeat("killed")
sys.exit("the driver was to be killed")
