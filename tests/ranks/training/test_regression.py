"""Numbers are predicted as well as by scikit-learn's network of the same size. Real ranks on this machine."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_diabetes
from sklearn.neural_network import MLPRegressor

from sparkdl.cluster import Rank, run_local
from sparkdl.collectives import create_backend
from sparkdl.data.card_parts import LabelScale
from sparkdl.settings import Train
from sparkdl.training.job import Job
from sparkdl.training.loop import train_rank

from ...conftest import write_vectors

SEEDS, EPOCHS, BATCH_ROWS, RATE, HIDDEN = 4, 4, 16, 0.001, 256
BACKEND = create_backend("auto")


def test_as_much_is_explained_as_by_a_network_of_scikit_learn_of_the_same_size(tmp_path: Path) -> None:
    """The mean of some seeds, on 442 patients' measures and how their disease went on."""
    rows, labels = load_diabetes(return_X_y=True)
    rows = rows / rows.std(axis=0)
    held_out = np.random.default_rng(1).random(len(rows)) < 0.3
    mean, std = labels[~held_out].mean(), labels[~held_out].std()
    theirs = [
        MLPRegressor(
            hidden_layer_sizes=(HIDDEN,),
            learning_rate_init=RATE,
            max_iter=EPOCHS,
            batch_size=BATCH_ROWS,
            alpha=0.0,
            random_state=seed,
        )
        .fit(rows[~held_out], (labels[~held_out] - mean) / std)
        .score(rows[held_out], (labels[held_out] - mean) / std)
        for seed in range(SEEDS)
    ]
    recipe = {"optimizer": "adam", "learning_rate": RATE, "schedule": "constant", "epochs": EPOCHS}
    settings = Train(model_options={"hidden": [HIDDEN]}, batch_size=BATCH_ROWS // 2, **recipe)
    splits = {
        split: [(rows[part], labels[part]) for part in np.array_split(np.flatnonzero(chosen), 2)]
        for split, chosen in {"train": ~held_out, "validation": held_out}.items()
    }
    scale = LabelScale(mean=mean, std=std)
    dataset = write_vectors(tmp_path / "dataset", splits, task="regression", label_names=(), label_scale=scale)
    job = Job(dataset, settings, str(tmp_path / "run"), BACKEND, reference=2)
    ours = run_local(partial(train_with_every_seed, job), 2, backend=BACKEND)[0]
    assert np.mean(ours) == pytest.approx(np.mean(theirs), abs=0.02)


def train_with_every_seed(job: Job, rank: Rank) -> list[float]:
    """R² on the held-out rows after the last epoch."""
    found = []
    for seed in range(SEEDS):
        settings = job.settings.model_copy(update={"seed": seed})
        if outcome := train_rank(replace(job, settings=settings, folder=f"{job.folder}-{seed}"), rank):
            found.append(outcome.history[-1]["validation_r2"])
    return found
