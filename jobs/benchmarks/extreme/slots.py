"""How much sooner the same tasks end on two slots than on one."""

import time
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

from benchmarks.extreme.processes import servant
from benchmarks.extreme.task import Task, first_groups
from benchmarks.report import Report, Target
from sparkdl.cluster import get_session
from sparkdl.data import Dataset
from sparkdl.extreme.tasks import run_tasks, train_pack
from sparkdl.settings import Cluster, Extreme

__all__ = ["run"]

ROUNDS = 5
PACKS = 2


def run(task: Task, folder: Path) -> Report:
    """Train the same packs on a Spark with one slot and on one with two, in turn. Runs on the driver.

    Both are started before, in processes of their own, and have trained something else already.
    """
    size = task.settings.repetitions_per_task
    settings = task.settings.model_copy(update={"epochs": 1, "repetitions": PACKS * size})
    seconds: dict[int, list[float]] = {1: [], 2: []}
    with ExitStack() as stack:
        sparks = {
            slots: stack.enter_context(
                servant(_train_when_asked, slots, task.dataset, settings, folder, log=folder / f"slots-{slots}.log")
            )
            for slots in seconds
        }
        for connection in sparks.values():
            connection.recv()
        for round_ in range(ROUNDS):
            for slots, connection in sparks.items():
                connection.send(f"round-{round_}")
                seconds[slots].append(connection.recv())
    speed_up = median(one / two for one, two in zip(seconds[1], seconds[2], strict=True))
    return Report(
        title=f"extreme, speed-up: {PACKS} tasks of {size} repetitions each, one epoch of {task.name}",
        columns=["slots", "median s", "fastest s", "slowest s", "times as fast"],
        rows=[
            [str(slots), median(found), min(found), max(found), ratio]
            for (slots, found), ratio in zip(seconds.items(), (1.0, speed_up), strict=True)
        ],
        targets=[Target("times as fast on two slots", speed_up, 1.9)],
        note=f"Median of {ROUNDS} rounds, taken in turn; one thread a slot.",
    )


def _train_when_asked(connection: Connection, slots: int, dataset: Dataset, settings: Extreme, folder: Path) -> None:
    """Train once for each name that is sent, and answer with the seconds that it took."""
    spark = get_session(Cluster(embedded_slots=slots, options={"spark.driver.memory": "1g"}))

    def seconds(of: Dataset, name: str) -> float:
        here = settings.model_copy(update={"run_dir": str(folder / f"slots-{slots}" / name)})
        started = time.perf_counter()
        size = here.repetitions // PACKS
        packs = [tuple(range(first, first + size)) for first in range(0, here.repetitions, size)]
        for _, found in run_tasks(partial(train_pack, of, here, "benchmark"), packs, spark):
            if isinstance(found, Exception):
                raise found
        return time.perf_counter() - started

    seconds(first_groups(dataset, 1), "warm-up")
    connection.send(None)
    for name in iter(connection.recv, None):
        connection.send(seconds(dataset, name))
    spark.stop()
