"""What checkpoints cost: short stretches of training with one, after one, and with nothing that could write any."""

import time
from collections.abc import Callable
from functools import partial
from itertools import cycle
from pathlib import Path
from statistics import fmean, median, stdev
from tempfile import TemporaryDirectory

from benchmarks.images import image_dataset
from benchmarks.loop import new_replica
from benchmarks.report import Report, Target
from sparkdl.cluster import Rank, run_ranks
from sparkdl.collectives import HorovodBackend
from sparkdl.data import Dataset
from sparkdl.settings import Train
from sparkdl.training.checkpoint import list_checkpoints
from sparkdl.training.loop import train_epoch
from sparkdl.training.reporter import Reporter
from sparkdl.training.saver import Saver
from sparkdl.training.state import TrainingState

__all__ = ["run"]

INTERVAL = 8  # stretches between two checkpoints, some ten seconds: far more often than anybody would
STRETCH = 40  # steps; a checkpoint is written long before they are over
KINDS = ("alone", "with", "after", "after", "with", "alone")  # forth and back, so that a drift cancels out
EPOCHS = 20
SETTINGS = Train(model="cnn", epochs=1 + EPOCHS, schedule="constant")


def run() -> Report:
    """Measure one rank. Runs on the driver."""
    rows = (1 + len(KINDS)) * STRETCH * SETTINGS.batch_size
    with image_dataset(rows) as (spark, dataset), TemporaryDirectory() as folder:
        (found,) = run_ranks(partial(_measure, dataset, folder), 1, spark=spark, backend=HorovodBackend())
    alone = fmean(found["alone"])
    differences = {
        key: [each - before for each, before in zip(found[key], found["alone"], strict=True)]
        for key in ("with", "after")
    }
    while_written, later = (fmean(each) for each in differences.values())
    costs = [one + (INTERVAL - 1) * other for one, other in zip(*differences.values(), strict=True)]
    error = stdev(costs) / len(costs) ** 0.5 / (INTERVAL * alone)
    kinds = {
        "alone": "without checkpoints",
        "with": f"with one of {found['bytes'][0] / 1e6:.1f} MB at the beginning",
        "after": "after such a stretch",
    }
    seconds = {key: median(found[key]) for key in kinds}
    return Report(
        title=f"checkpoint: training on one rank, {len(costs)} stretches of {STRETCH} steps of each kind",
        columns=["", "ms (median)", "images/s"],
        rows=[[kinds[key], 1000 * each, STRETCH * SETTINGS.batch_size / each] for key, each in seconds.items()],
        targets=[
            Target(
                f"cost of one every {INTERVAL * alone:.1f} s, of training time",
                fmean(costs) / (INTERVAL * alone),
                0.02,
                at_most=True,
            )
        ],
        note="Stretches follow each other in the order of the table, and back. On average, one with a checkpoint takes "
        f"{1000 * while_written:+.0f} ms longer than the one without checkpoints beside it, and one after it "
        f"{1000 * later:+.0f} ms; the cost is the sum of one of the first kind and {INTERVAL - 1} of the second, with "
        f"a standard error of {error:.4f}. By default there is a checkpoint every {SETTINGS.checkpoint_minutes:g} "
        "minutes and after each epoch.",
    )


def _measure(dataset: Dataset, folder: str, rank: Rank) -> dict[str, list[float]]:
    """Seconds of each stretch."""
    stretches: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with HorovodBackend().connect() as collectives:
        replica, reporter = new_replica(rank, dataset, SETTINGS, collectives), Reporter(rank)
        state = TrainingState()
        state.finish_epoch(train_epoch(replica, dataset, state, reporter))  # compiles kernels and fills caches

        def new_saver() -> Saver:
            return Saver(folder, SETTINGS, rank, replica, reporter, batch_size=SETTINGS.batch_size)

        for _ in range(EPOCHS):
            with _Clock(new_saver, stretches) as clock:
                state.finish_epoch(train_epoch(replica, dataset, state, reporter, after_step=clock))
    return stretches | {"bytes": [float(Path(list_checkpoints(folder, "step")[0]).stat().st_size)]}


class _Clock:
    """Called after each step of an epoch: takes the time of each stretch but the first, which opens the data.

    A saver, and the thread in which it writes, lives as long as stretches have to do with checkpoints. It is asked
    after each step, as ever, and a checkpoint is never due by the clock.
    """

    def __init__(self, new_saver: Callable[[], Saver], stretches: dict[str, list[float]]) -> None:
        self._new_saver, self._stretches = new_saver, stretches
        self._saver: Saver | None = None
        self._kinds = cycle((*KINDS, None))
        self._kind: str | None = None
        self._steps = 0
        self._started = 0.0

    def __enter__(self) -> "_Clock":
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def __call__(self, state: TrainingState) -> None:
        """Take note of a step."""
        if self._saver:
            self._saver.after_step(state)
        self._steps += 1
        if self._steps % STRETCH:
            return
        if self._saver:
            self._saver.finish()  # whatever of it is left belongs to its stretch
        if self._kind:
            self._stretches[self._kind].append(time.perf_counter() - self._started)
        self._kind = next(self._kinds)
        if self._kind in ("alone", None):
            self._close()
        elif not self._saver:
            self._saver = self._new_saver()
            self._saver.start(state)
        self._started = time.perf_counter()
        if self._saver and self._kind == "with":
            self._saver.save(state)

    def _close(self) -> None:
        if self._saver:
            self._saver.__exit__(None, None, None)
            self._saver = None
