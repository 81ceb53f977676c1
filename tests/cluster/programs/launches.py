"""What tests/cluster/test_standalone.py submits: launches on a real cluster, reported as one line of JSON."""

import json
import os
import re
import signal
import time
from pathlib import Path

import psutil
import torch

from sparkdl.cluster import Rank, Timeouts, get_session, run_ranks
from sparkdl.collectives import create_backend
from sparkdl.errors import SparkdlError

BACKEND = create_backend("auto")
TIMEOUTS = Timeouts(silence_timeout=5)


def all_reduce(rank: Rank) -> tuple[float, int, int]:
    with BACKEND.connect() as collectives:
        total = collectives.all_reduce(torch.tensor([rank.rank + 1.0]), op="sum").item()
    return total, os.getpid(), executor()


def raise_on_one(rank: Rank) -> None:
    with BACKEND.connect() as collectives:
        if rank.rank == 1:
            raise ValueError("boom")
        collectives.barrier()


def kill_the_executor_of_one(rank: Rank) -> None:
    with BACKEND.connect() as collectives:
        if rank.rank == 1:
            os.kill(executor(), signal.SIGKILL)
            time.sleep(60)
        collectives.barrier()


def stop_the_rank(rank: Rank) -> None:
    rank.send("place", process=os.getpid(), executor=executor())
    with BACKEND.connect() as collectives:
        for step in range(5):
            rank.beat(step)
            collectives.barrier()
        time.sleep(1.5)  # so that a heartbeat says where it is
        if rank.rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        collectives.barrier()


def stop_the_executor(rank: Rank) -> None:
    rank.send("place", process=os.getpid(), executor=executor())
    with BACKEND.connect() as collectives:
        collectives.barrier()  # a new executor may be seconds later than the other, and both are to be there
    if rank.rank == 1:
        os.kill(executor(), signal.SIGSTOP)
    time.sleep(60)


def asks_for_huge_pages(rank: Rank) -> bool:
    """Whether Linux is asked to keep a large tensor in huge pages; how many it has is for it to say."""
    large = torch.ones(16 << 20)
    middle = large.data_ptr() + large.nbytes // 2
    mappings = re.findall(r"^(\w+)-(\w+) .*?^VmFlags: (.*?)$", Path("/proc/self/smaps").read_text(), re.M | re.S)
    (flags,) = (flags for begin, end, flags in mappings if int(begin, 16) <= middle < int(end, 16))
    return "hg" in flags.split()


def executor() -> int:
    """The executor's JVM: the nearest ancestor that is not Python."""
    return next(process.pid for process in psutil.Process().parents() if "java" in process.name())


def left_over(processes: list[int]) -> list[int]:
    """Those that are still there after some seconds."""
    deadline = time.monotonic() + 10
    while (left := [process for process in processes if psutil.pid_exists(process)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def outcome(function, num_ranks: int, **options) -> dict:
    places: dict[int, dict] = {}
    started = time.monotonic()
    try:
        return {
            "results": run_ranks(
                function, num_ranks, spark=spark, backend=BACKEND, on_message=places.__setitem__, **options
            )
        }
    except SparkdlError as error:
        seconds = time.monotonic() - started
        return {
            "error": type(error).__name__,
            "message": str(error),
            "rank": vars(error).get("rank"),
            "seconds": seconds,
            **{name: vars(error).get(name) for name in ("exception_type", "step", "host")},
            "left over": left_over([place["process"] for place in places.values()]),
            "executors": [places[rank]["executor"] for rank in sorted(places)],
        }


spark = get_session()
# As Spark does when the executor that it sends a message to has just been killed.
logger = spark._jvm.org.slf4j.LoggerFactory.getLogger("org.apache.spark.network.client.TransportClient")
logger.error("Failed to send RPC", spark._jvm.java.io.IOException("Broken pipe"))
report = {
    "first": outcome(all_reduce, 2),
    "second": outcome(all_reduce, 2),
    "huge pages": outcome(asks_for_huge_pages, 1),
    "too many": outcome(all_reduce, 3, slot_timeout=1.0),
    "raising": outcome(raise_on_one, 2),
    "stopped": outcome(stop_the_rank, 2, timeouts=TIMEOUTS),
    "killed": outcome(kill_the_executor_of_one, 2),
    "stopped executor": outcome(stop_the_executor, 2, timeouts=TIMEOUTS, slot_timeout=60.0),
    "afterwards": outcome(all_reduce, 2, slot_timeout=60.0),
}
print(json.dumps(report))
