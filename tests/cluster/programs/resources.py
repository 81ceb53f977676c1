"""What tests/cluster/test_resources.py submits: ranks with resources of their own, reported as one line of JSON."""

import json
import time

from sparkdl.cluster import count_slots, get_session, run_ranks
from sparkdl.errors import SparkdlError
from sparkdl.settings import Resources


def error(resources: Resources, num_ranks: int) -> dict:
    started = time.monotonic()
    try:
        run_ranks(lambda rank: rank.threads, num_ranks, spark=spark, resources=resources, slot_timeout=20.0)
    except SparkdlError as problem:
        seconds = time.monotonic() - started
        return {"error": type(problem).__name__, "message": str(problem), "seconds": seconds}
    return {}


spark = get_session()
whole = Resources(cpus=2)
report = {
    "plain": run_ranks(lambda rank: rank.threads, 4, spark=spark),
    "whole": run_ranks(lambda rank: rank.threads, 2, spark=spark, resources=whole),
    "slots": [count_slots(spark), count_slots(spark, whole), count_slots(spark, Resources(cpus=3))],
    "too large": error(Resources(cpus=3), 1),
    "no gpu": error(Resources(gpus=1), 1),
}
print(json.dumps(report))
