"""What checkpoints cost: the same epochs with and without them."""

import itertools
import threading
import time
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import psutil

from sparkdl.benchmarks.images import image_dataset
from sparkdl.benchmarks.loop import new_replica
from sparkdl.benchmarks.report import Report, Target
from sparkdl.cluster import Rank, run_ranks
from sparkdl.collectives import HorovodCollectives
from sparkdl.data import Dataset
from sparkdl.settings import Train
from sparkdl.training.checkpoint import list_checkpoints
from sparkdl.training.loop import train_epoch
from sparkdl.training.reporter import Reporter
from sparkdl.training.saver import Saver
from sparkdl.training.state import TrainingState

__all__ = ["run"]

ROWS = 38_400
ROUNDS = 3
STEPS = 300  # between two checkpoints: some ten seconds, far more often than anybody would
SETTINGS = Train(model="cnn", epochs=1 + 2 * ROUNDS, schedule="constant", checkpoint_steps=STEPS)


def run() -> Report:
    """Measure one rank. Runs on the driver."""
    with image_dataset(ROWS) as (spark, dataset), TemporaryDirectory() as folder:
        (found,) = run_ranks(partial(_measure, dataset, folder), 1, spark=spark)
    ratio = median(a / b for a, b in zip(found["with"], found["without"], strict=True))
    interval = STEPS * SETTINGS.batch_size / median(found["with"])
    trained = ROUNDS * ROWS / median(found["with"])
    waited, written = found["waited"][0] / trained, found["written"][0] / trained
    return Report(
        title="checkpoint: training on one rank, in images per second",
        columns=["", "images/s", "part of the speed without"],
        rows=[
            ["without checkpoints", median(found["without"]), 1.0],
            [f"one every {interval:.1f} s ({found['bytes'][0] / 1e6:.1f} MB)", median(found["with"]), ratio],
        ],
        targets=[
            Target("cost, as a part of training time", 1 - ratio, 0.02, at_most=True),
            Target("cost that can be counted", waited + written, 0.02, at_most=True),
        ],
        note=f"Medians of {ROUNDS} epochs of {ROWS:,} images each, in turn; ratio of each pair. Counted are "
        f"the time that training waits in the saver ({waited:.2%}) and the CPU time of the thread that writes "
        f"({written:.2%}); what else a checkpoint may slow down shows in the ratio alone. By "
        f"default there is one every {SETTINGS.checkpoint_minutes:g} minutes and after each epoch.",
    )


def _measure(dataset: Dataset, folder: str, rank: Rank) -> dict[str, list[float]]:
    rates: dict[str, list[float]] = {"without": [], "with": [], "bytes": []}
    waited = 0.0
    with HorovodCollectives() as collectives:
        replica, reporter = new_replica(rank, dataset, SETTINGS, collectives), Reporter(rank)
        state = TrainingState()
        with Saver(folder, SETTINGS, rank, replica, reporter, batch_size=SETTINGS.batch_size) as saver:

            def after_step(state: TrainingState) -> None:
                nonlocal waited
                started = time.perf_counter()
                saver.after_step(state)
                waited += time.perf_counter() - started

            saver.start(state)
            state.finish_epoch(train_epoch(replica, dataset, state, reporter))  # compiles kernels and fills caches
            for kind in itertools.islice(itertools.cycle(["without", "with"]), 2 * ROUNDS):
                if kind == "with":
                    saver.start(state)
                    figures = train_epoch(replica, dataset, state, reporter, after_step=after_step)
                else:
                    figures = train_epoch(replica, dataset, state, reporter)
                saver.finish()
                state.finish_epoch(figures)
                rates[kind].append(figures["rows_per_second"])
            rates |= {"waited": [waited], "written": [_writing_seconds()]}
    rates["bytes"].append(float(Path(list_checkpoints(folder, "step")[0]).stat().st_size))
    return rates


def _writing_seconds() -> float:
    """CPU time of the thread that writes checkpoints."""
    writers = {thread.native_id for thread in threading.enumerate() if thread.name.startswith("sparkdl-checkpoint")}
    return float(sum(own.user_time + own.system_time for own in psutil.Process().threads() if own.id in writers))
