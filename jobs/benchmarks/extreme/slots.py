"""How much sooner the same tasks of both stages end on two slots than on one."""

from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

import sparkdl
from benchmarks.extreme.processes import servant
from benchmarks.extreme.task import Task, first_groups
from benchmarks.report import Report, Target

__all__ = ["run"]

ROUNDS = 3
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
        title=f"extreme, speed-up: {PACKS} tasks of {size} repetitions each, one epoch of {task.name}, and the ranker",
        columns=["slots", "median s", "fastest s", "slowest s", "times as fast"],
        rows=[
            [str(slots), median(found), min(found), max(found), ratio]
            for (slots, found), ratio in zip(seconds.items(), (1.0, speed_up), strict=True)
        ],
        targets=[Target("times as fast on two slots", speed_up, 1.8)],
        note=f"Median of {ROUNDS} rounds, taken in turn; one thread a slot.",
    )


def _train_when_asked(
    connection: Connection, slots: int, dataset: sparkdl.Dataset, settings: sparkdl.Extreme, folder: Path
) -> None:
    """Train once for each name that is sent, and answer with the seconds that it took."""
    own = folder / f"slots-{slots}"
    own.mkdir()
    tracking = sparkdl.Tracking(uri=f"sqlite:///{own}/mlflow.db", spool=str(own / "spool"))
    spark = sparkdl.get_session(sparkdl.Cluster(embedded_slots=slots, options={"spark.driver.memory": "1g"}))

    def seconds(of: sparkdl.Dataset, name: str) -> float:
        here = settings.model_copy(update={"run_dir": str(own / name)})
        return sparkdl.train_extreme(of, here, tracking=tracking, spark=spark).seconds

    only_training = first_groups(dataset, len(dataset.row_groups("train")))
    seconds(first_groups(dataset, 1), "warm-up")
    connection.send(None)
    for name in iter(connection.recv, None):
        connection.send(seconds(only_training, name))
    spark.stop()
