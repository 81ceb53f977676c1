"""What a checkpoint costs four ranks whose replicas differ: seconds that training stops, and memory.

Each rank's part (weights and Adam's moments) is 125 MB. A stop is compared with a copy of the rank's own part in its
own memory, the least that a checkpoint in the background can do.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median
from tempfile import TemporaryDirectory

import psutil
import torch
from torch import nn

from benchmarks.report import Report, Target
from sparkdl.cluster import Rank, run_local
from sparkdl.collectives import HorovodBackend
from sparkdl.data import Batch
from sparkdl.settings import Train
from sparkdl.training.checkpoints.checkpoint import load_manifest
from sparkdl.training.checkpoints.checkpoint_folder import latest
from sparkdl.training.checkpoints.saver import Saver
from sparkdl.training.checkpoints.state import TrainingState, copied
from sparkdl.training.groups import Groups
from sparkdl.training.replica import Replica
from sparkdl.training.tasks import Classification

__all__ = ["run"]

SIZE = 4
WIDTH = 2_284  # two layers of so many weights squared: 41.7 MB, and Adam's moments twice as much
ROUNDS = 9
SETTINGS = Train(strategy={"kind": "local_sgd", "period": 1_000}, optimizer="adamw", learning_rate=1e-4)  # type: ignore[arg-type]


def run() -> Report:
    """Measure four ranks. Runs on the driver."""
    with TemporaryDirectory() as folder:
        found = run_local(partial(_measure, folder), SIZE, backend=HorovodBackend())
        manifest = load_manifest(str(latest(folder)))
        parts = [shard.bytes for shard in manifest.shards]
    ratio = median(each for rank in found for each in rank["ratio"])
    return Report(
        title=f"shards: a checkpoint of {SIZE} ranks whose replicas differ, {sum(parts) / 1e6:.0f} MB together",
        columns=["rank", "its part, MB", "copy, ms", "stop, ms", "stop over copy", "peak memory over its part"],
        rows=[
            [
                str(number),
                part / 1e6,
                1000 * median(rank["copy"]),
                1000 * median(rank["stop"]),
                median(rank["ratio"]),
                rank["peak"][0] / part,
            ]
            for number, (part, rank) in enumerate(zip(parts, found, strict=True))
        ],
        targets=[Target("stop over a copy in memory", ratio, 1.05, at_most=True)],
        note=f"Medians of {ROUNDS} checkpoints; copy and stop take turns.",
    )


def _measure(folder: str, rank: Rank) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {"copy": [], "stop": [], "ratio": [], "peak": []}
    with HorovodBackend().connect() as world:
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
        replica = Replica(network, SETTINGS, Classification(WIDTH), Groups(world, world), torch.device("cpu"))
        replica.step([Batch(torch.randn(8, WIDTH), torch.zeros(8, dtype=torch.int64), 8 * SIZE)], rate=1e-4)
        before = psutil.Process().memory_info().rss
        with Saver(folder, SETTINGS, rank, replica, batch_size=8) as saver, _peak_memory() as peak:
            for number in range(1, 1 + ROUNDS):
                world.barrier()
                started = time.perf_counter()
                copy = copied([replica.model.state_dict(), replica.optimizer.state_dict()])
                copying = time.perf_counter() - started
                del copy
                world.barrier()
                started = time.perf_counter()
                saver.save(TrainingState(step=number))
                stopped = time.perf_counter() - started
                for name, seconds in (("copy", copying), ("stop", stopped), ("ratio", stopped / copying)):
                    found[name].append(seconds)
                saver.finish()
        found["peak"].append(peak[0] - before)
    return found


@contextmanager
def _peak_memory() -> Iterator[list[int]]:
    """The most memory that this process holds while the block lasts, in bytes, once it is over."""
    peak, ended = [0], threading.Event()

    def look() -> None:
        while not ended.wait(0.002):
            peak[0] = max(peak[0], psutil.Process().memory_info().rss)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        ended.set()
        thread.join()
