"""What checkpoints cost: stretches of one run's training that begin with a checkpoint, that follow, and that are alone.

The run's loss is a function that takes the time of each step, which is all that a user has to bring along.
"""

import time
from pathlib import Path
from statistics import fmean, median, stdev
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch.nn import functional

import sparkdl
from benchmarks.images import image_dataset
from benchmarks.report import Report, Target

__all__ = ["run"]

STRETCH = 40  # steps; a checkpoint is written long before they are over
KINDS = ("with", "after", "alone")
CHECKPOINTS = 20
EVERY = 8  # stretches between two checkpoints, some ten seconds: far more often than anybody would
BATCH_SIZE = 64


def run() -> Report:
    """Measure one rank. Runs on the driver."""
    cycle = len(KINDS) * STRETCH
    with image_dataset((1 + CHECKPOINTS) * cycle * BATCH_SIZE) as (spark, dataset), TemporaryDirectory() as folder:
        settings = sparkdl.Train(
            model="cnn",
            loss=TimedLoss(f"{folder}/times"),
            epochs=1,
            batch_size=BATCH_SIZE,
            schedule="constant",
            run_dir=f"{folder}/runs",
            checkpoint_minutes=None,
            checkpoint_steps=cycle,
        )
        tracking = sparkdl.Tracking(uri=f"sqlite:///{folder}/mlflow.db", spool=f"{folder}/spool")
        sparkdl.train(dataset, settings, cluster=sparkdl.Cluster(num_ranks=1), tracking=tracking, spark=spark)
        times = np.fromfile(f"{folder}/times")[-(1 + CHECKPOINTS) * cycle :]  # before, the loss was tried
        size = max(file.stat().st_size for file in Path(folder, "runs").rglob("*") if file.is_file())
    # The first cycle compiles kernels and fills caches. A checkpoint is written after the last step of a cycle.
    stretches = np.diff(times[cycle - 1 :: STRETCH]).reshape(CHECKPOINTS, len(KINDS))
    seconds = dict(zip(KINDS, stretches.T.tolist(), strict=True))
    alone = fmean(seconds["alone"])
    while_written, later = (fmean(seconds[kind]) - alone for kind in ("with", "after"))
    costs = [one + other - 2 * without for one, other, without in stretches.tolist()]
    error = stdev(costs) / len(costs) ** 0.5 / (EVERY * alone)
    kinds = {
        "with": f"beginning with a checkpoint of {size / 1e6:.1f} MB",
        "after": "after such a stretch",
        "alone": "after that",
    }
    return Report(
        title=f"checkpoint: training on one rank, {CHECKPOINTS} stretches of {STRETCH} steps of each kind",
        columns=["", "ms (median)", "images/s"],
        rows=[
            [kinds[kind], 1000 * each, STRETCH * BATCH_SIZE / each]
            for kind, each in ((kind, median(found)) for kind, found in seconds.items())
        ],
        targets=[
            Target(
                f"cost of one every {EVERY * alone:.1f} s, of training time",
                fmean(costs) / (EVERY * alone),
                0.02,
                at_most=True,
            )
        ],
        note="Stretches follow each other in the order of the table. On average, the first kind takes "
        f"{1000 * while_written:+.0f} ms longer than the last, and the second {1000 * later:+.0f} ms; a checkpoint "
        f"costs the sum of both, with a standard error of {error:.4f} of training time. By default there is one every "
        f"{sparkdl.Train().checkpoint_minutes:g} minutes and after each epoch.",
    )


class TimedLoss:
    """The cross-entropy, which writes down when it was asked for (float64 seconds), step after step. Runs on a rank."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __call__(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The mean over the batch."""
        with Path(self._path).open("ab") as times:
            times.write(np.float64(time.perf_counter()).tobytes())
        return functional.cross_entropy(outputs, labels)
