"""What checkpoints cost: short stretches of training with one and without, in turn."""

import time
from functools import partial
from pathlib import Path
from statistics import fmean, median, stdev
from tempfile import TemporaryDirectory

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

INTERVAL = 300  # steps between two checkpoints, some ten seconds: far more often than anybody would
STRETCH = 40  # steps; a checkpoint is written long before they are over
PER_EPOCH = 9  # stretches; the first of an epoch opens the data and is not counted
EPOCHS = 20
SETTINGS = Train(model="cnn", epochs=2 + EPOCHS, schedule="constant")


def run() -> Report:
    """Measure one rank. Runs on the driver."""
    with image_dataset(PER_EPOCH * STRETCH * SETTINGS.batch_size) as (spark, dataset), TemporaryDirectory() as folder:
        (found,) = run_ranks(partial(_measure, dataset, folder), 1, spark=spark)
    extra = [a - b for a, b in zip(found["with"], found["without"], strict=True)]
    cost, error = fmean(extra), stdev(extra) / len(extra) ** 0.5
    interval = INTERVAL / STRETCH * median(found["without"])
    asked = sum(found["asked"]) / sum(sum(found[key]) for key in ("before", "without", "with"))
    kinds = {
        "before": "before the first checkpoint",
        "without": "without a checkpoint",
        "with": f"with one of {found['bytes'][0] / 1e6:.1f} MB",
    }
    seconds = {key: median(found[key]) for key in kinds}
    return Report(
        title=f"checkpoint: training on one rank, {len(extra)} pairs of {STRETCH} steps with one and without",
        columns=["", "ms (median)", "images/s"],
        rows=[[kinds[key], 1000 * each, STRETCH * SETTINGS.batch_size / each] for key, each in seconds.items()],
        targets=[
            Target(f"cost of one every {interval:.1f} s, of training time", cost / interval + asked, 0.02, at_most=True)
        ],
        note=f"With a checkpoint, {STRETCH} steps take {1000 * cost:.0f} ms longer than the {STRETCH} beside them (mean"
        f" of the pairs, standard error {1000 * error:.0f} ms): training waits for the copy, and shares the machine"
        f" with what writes it. Asking whether one is due takes {asked:.2%} of the time. By default there is one every"
        f" {SETTINGS.checkpoint_minutes:g} minutes and after each epoch.",
    )


def _measure(dataset: Dataset, folder: str, rank: Rank) -> dict[str, list[float]]:
    """Seconds of each stretch. The two of a pair follow each other, one kind first as often as the other."""
    stretches: dict[str, list[float]] = {"before": [], "without": [], "with": [], "asked": []}
    with HorovodCollectives() as collectives:
        replica, reporter = new_replica(rank, dataset, SETTINGS, collectives), Reporter(rank)
        state = TrainingState()
        state.finish_epoch(train_epoch(replica, dataset, state, reporter))  # compiles kernels and fills caches
        with Saver(folder, SETTINGS, rank, replica, reporter, batch_size=SETTINGS.batch_size) as saver:
            for epoch in range(1 + EPOCHS):
                kinds = ["before"] * PER_EPOCH if not epoch else ["with", "without", "without", "with"] * PER_EPOCH
                clock = _Clock(saver, kinds, stretches)
                state.finish_epoch(train_epoch(replica, dataset, state, reporter, after_step=clock))
    return stretches | {"bytes": [float(Path(list_checkpoints(folder, "step")[0]).stat().st_size)]}


class _Clock:
    """Called after each step of an epoch: takes the time of each stretch but the first, and saves where one begins.

    Whether a checkpoint is due by the clock is asked as ever, and never so.
    """

    def __init__(self, saver: Saver, kinds: list[str], stretches: dict[str, list[float]]) -> None:
        self._saver, self._kinds, self._stretches = saver, kinds, stretches
        self._steps = 0
        self._started = 0.0

    def __call__(self, state: TrainingState) -> None:
        """Take note of a step."""
        started = time.perf_counter()
        self._saver.after_step(state)
        self._stretches["asked"].append(time.perf_counter() - started)
        self._steps += 1
        number, rest = divmod(self._steps, STRETCH)
        if rest:
            return
        if number > 1:
            self._saver.finish()  # whatever of it is left belongs to its stretch
            self._stretches[self._kinds[number - 2]].append(time.perf_counter() - self._started)
        self._started = time.perf_counter()
        if number < PER_EPOCH and self._kinds[number - 1] == "with":
            self._saver.save(state)
