"""What tests/cluster/test_gpus.py submits: tasks with two GPUs each, reported as one line of JSON."""

import json
import os
import signal
import time

import psutil

import sparkdl
from sparkdl.cluster import count_ranks, count_slots, get_session, run_ranks
from sparkdl.cluster.own_executor import own_executor
from sparkdl.errors import SparkdlError


def place(rank):
    executor = [process.name() for process in own_executor()]
    return [rank.rank, rank.local_rank, rank.local_size, rank.device, rank.threads, os.getpid(), executor[-1:]]


def program():
    import torch

    torch.distributed.init_process_group("gloo")
    total = torch.tensor([2 ** int(os.environ["RANK"])])
    torch.distributed.all_reduce(total)
    return [int(total), os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"]]


def failing(rank):
    if rank.rank == 2:
        raise ValueError("no such row")
    time.sleep(60)


def killed(rank):
    rank.send("process", number=os.getpid())
    if rank.rank == 3:
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def error(function, num_ranks):
    try:
        run_ranks(
            function, num_ranks, spark=spark, on_message=lambda rank, message: processes.append(message["number"])
        )
    except SparkdlError as problem:
        return f"{type(problem).__name__}: {problem}"
    return ""


def left():
    """Processes of ranks that are still there some seconds after their run."""
    deadline = time.monotonic() + 10
    while any(map(psutil.pid_exists, processes)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return [number for number in processes if psutil.pid_exists(number)]


spark, processes = get_session(), []
report = {
    "places": run_ranks(place, 4, spark=spark),
    "again": run_ranks(place, 4, spark=spark),
    "slots": [count_slots(spark), count_ranks(spark)],
    "one task": run_ranks(place, 2, spark=spark),
    "a program": sparkdl.TorchRunner(np=4).run(program),
    "failing": error(failing, 4),
    "killed": error(killed, 4),
    "left": [len(processes), left()],
    "odd": error(place, 3),
    "after": len(run_ranks(place, 4, spark=spark)),
}
print(json.dumps(report))
