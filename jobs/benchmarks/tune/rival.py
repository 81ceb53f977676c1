"""The same sampler and budget of seconds for ``MlflowSparkStudy``, whose trials are tasks with a loop of their own.

Its trials train the same network by a loop written by hand, with one thread, on images that each task has in memory.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import mlflow
import numpy as np
import optuna
import torch
from mlflow.optuna.storage import MlflowStorage
from mlflow.pyspark.optuna.study import MlflowSparkStudy
from torch import nn

from benchmarks.report import Report, Target
from benchmarks.tune.searching import SLOTS, Place, place, search, spread, warm_up
from sparkdl.data import Loader
from sparkdl.models import networks

__all__ = ["run"]

SECONDS, EPOCHS, PART, ROWS = 60.0, 3, 0.3, 64
RATES = (1e-5, 1e-1)


def run(*, seeds: Sequence[int] = (0,)) -> Report:
    """Runs on the driver: two minutes and a half for each seed."""
    ours: list[tuple[float, float, int]] = []
    theirs: list[tuple[float, float, int]] = []
    with place(PART) as where:
        images = _images(where)
        warm_up(where)
        for seed in seeds:
            ours.append(_search(where, seed))
            theirs.append(_study(where, images, seed))
    rows: list[list[str | float]] = [
        [
            name,
            *spread(each[0] for each in found),
            *spread(each[1] for each in found),
            median(each[2] for each in found),
        ]
        for name, found in (("sparkdl tune", ours), ("MlflowSparkStudy", theirs))
    ]
    better = median(each[0] for each in ours) - median(each[0] for each in theirs)
    longer = median(each[1] for each in ours) / median(each[1] for each in theirs)
    return Report(
        title=f"tune: TPE for {SECONDS:g} s, cnn on {PART:.0%} of Fashion-MNIST, {EPOCHS} epochs, {SLOTS} slots,"
        f" {len(seeds)} seeds",
        columns=["", "best validation accuracy", "from", "to", "seconds", "from", "to", "trials"],
        rows=rows,
        targets=[
            Target("accuracy over MlflowSparkStudy's", better, 0.0),
            Target("of its seconds", longer, 1.0, at_most=True),
        ],
    )


def _search(where: Place, seed: int) -> tuple[float, float, int]:
    train = {"model": "cnn", "batch_size": ROWS, "epochs": EPOCHS, "schedule": "constant"}
    space = {"train.learning_rate": {"log": list(RATES)}}
    tune = {"space": space, "trials": 1000, "seconds": SECONDS, "seed": seed, "stopping": "asha"}
    found = search(where, train=train, tune=tune)
    return found.best, found.seconds, len(found.tuned.trials)


def _images(where: Place) -> Path:
    """Both splits as arrays in a file."""
    arrays: dict[str, Any] = {}
    for split in ("train", "validation"):
        (batch,) = Loader(where.dataset, split, batch_size=1 << 20, shuffle=False).epoch(0)
        arrays |= {f"{split}_images": np.asarray(batch.inputs), f"{split}_labels": batch.labels.numpy()}
    path = where.folder / "images.npz"
    np.savez(path, **arrays)
    return path


def _study(where: Place, images: Path, seed: int) -> tuple[float, float, int]:
    uri = f"sqlite:///{where.folder}/rival.db"
    mlflow.set_tracking_uri(uri)
    experiment = mlflow.create_experiment(f"rival {seed}", artifact_location=f"{where.folder}/artifacts")
    mlflow.set_experiment(experiment_id=experiment)
    started = time.perf_counter()
    study = MlflowSparkStudy(
        study_name=f"rival-{seed}",
        storage=MlflowStorage(experiment_id=experiment),
        sampler=optuna.samplers.TPESampler(seed=seed),
        mlflow_tracking_uri=uri,
    )
    study.set_metric_names(["accuracy"])
    study.optimize(_objective(str(images)), n_trials=1000, timeout=SECONDS, n_jobs=SLOTS)
    best = max((-trial.value for trial in study.trials if trial.value is not None), default=float("nan"))
    return best, time.perf_counter() - started, len(study.trials)


def _objective(path: str) -> Any:
    """What a task runs for a trial: the negative accuracy, since the study minimises."""

    def objective(trial: optuna.Trial) -> float:
        torch.set_num_threads(1)
        arrays = np.load(path)
        data = {name: torch.from_numpy(arrays[name]) for name in arrays}
        network = networks.cnn(input_shape=(1, 28, 28), num_classes=10)
        rate = trial.suggest_float("rate", *RATES, log=True)
        optimizer = torch.optim.AdamW(network.parameters(), lr=rate, weight_decay=0.0, fused=True)
        best = 0.0
        for _ in range(EPOCHS):
            for rows in torch.randperm(len(data["train_labels"])).split(ROWS):
                optimizer.zero_grad()
                scores = network(_scaled(data["train_images"][rows]))
                nn.functional.cross_entropy(scores, data["train_labels"][rows]).backward()
                optimizer.step()
            with torch.no_grad():
                found = torch.cat([network(_scaled(some)).argmax(1) for some in data["validation_images"].split(512)])
            best = max(best, float((found == data["validation_labels"]).float().mean()))
        return -best

    return objective


def _scaled(images: torch.Tensor) -> torch.Tensor:
    return images.float().permute(0, 3, 1, 2) / 255
