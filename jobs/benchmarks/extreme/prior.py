"""Whether knowing how frequent classes are ever makes answers worse, from one repetition to many."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

import sparkdl
from benchmarks.extreme.made_up import Shape, write_dataset
from benchmarks.extreme.processes import alone
from benchmarks.extreme.task import Task, rows_of
from benchmarks.report import Report, Target
from sparkdl.data import SparseLoader
from sparkdl.extreme.decode import Decoder
from sparkdl.extreme.ensemble import Ensemble
from sparkdl.extreme.fit import choose_buckets, fit
from sparkdl.extreme.hashing import Buckets
from sparkdl.extreme.metrics import evaluate

__all__ = ["run"]

SHAPE = Shape(rows=65_536, features=50_000, classes=20_000, labels=3, test_rows=8_192)
SETTINGS = sparkdl.Extreme(buckets=256, repetitions=16, hidden=[32], epochs=3, dropout=0.0)
REPETITIONS = (1, 2, 4, 8, 16)
BATCH = 256
Points = dict[int, tuple[float, float]]
"""P@1 without and with the prior, by number of repetitions."""


def run(task: Task, model: Path, folder: Path) -> Report:
    """Decode test rows with and without the prior: the task's, and rows of made-up data with several labels each.

    Runs on the driver; trains on the made-up data in a process of its own.
    """
    found = {
        task.name: _of_ensemble(task.dataset, model),
        f"made up, {SHAPE.labels} labels a row": alone(_of_made_up, folder / "labels", log=folder / "prior.log"),
    }
    return Report(
        title="extreme, prior: P@1 by number of repetitions, without and with the frequencies of classes",
        columns=["data", "repetitions", "without", "with", "points gained"],
        rows=[
            [name, str(number), without, with_it, with_it - without]
            for name, points in found.items()
            for number, (without, with_it) in points.items()
        ],
        targets=[
            Target(f"least gain, {name}", min(with_it - without for without, with_it in points.values()), 0)
            for name, points in found.items()
        ],
        note=(
            f"Made up: {SHAPE.rows:,} rows to train on and {SHAPE.test_rows:,} to test with, {SHAPE.classes:,} "
            f"Zipf-like classes, {SHAPE.features:,} features; B = {SETTINGS.buckets}, hidden {SETTINGS.hidden[0]}, "
            f"{SETTINGS.epochs} epochs."
        ),
        digits=4,
    )


def _of_ensemble(dataset: sparkdl.Dataset, model: Path) -> Points:
    ensemble = Ensemble.open(model)
    batches = SparseLoader(dataset, "test", batch_size=BATCH, shuffle=False).epoch(0)
    logits = torch.cat([ensemble.logits(batch) for batch in batches], dim=1)
    return _points(dataset, ensemble.buckets, ensemble.label_counts, logits)


def _of_made_up(folder: Path) -> Points:
    dataset = write_dataset(folder, SHAPE)
    buckets = choose_buckets(dataset, SETTINGS, range(SETTINGS.repetitions))
    models = fit(dataset, SETTINGS, buckets)
    batches = SparseLoader(dataset, "test", batch_size=BATCH, shuffle=False).epoch(0)
    logits = torch.cat([models.logits(batch) for batch in batches], dim=1)
    return _points(dataset, list(buckets.values()), dataset.label_counts, logits)


def _points(
    dataset: sparkdl.Dataset, hashes: Sequence[Buckets], counts: npt.NDArray[np.int64], logits: torch.Tensor
) -> Points:
    rows = rows_of(dataset, "test")

    def precision(number: int, known: npt.NDArray[np.int64] | None) -> float:
        decoder = Decoder(hashes[:number], dataset.num_classes, counts=known)
        best = decoder.top_k(logits[:number], 1).classes.numpy()
        return 100 * float(evaluate(best, rows.labels, rows.label_offsets).precision[0])

    numbers = [number for number in REPETITIONS if number <= len(hashes)]
    return {number: (precision(number, None), precision(number, counts)) for number in numbers}
