"""Groups are ranked better than by a network that predicts relevance. Real ranks on this machine."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from sklearn.metrics import ndcg_score
from sklearn.neural_network import MLPRegressor

from sparkdl.cluster import Rank, run_local
from sparkdl.collectives import create_backend
from sparkdl.data import Dataset
from sparkdl.settings import Train
from sparkdl.training.job import Job
from sparkdl.training.loop import train_rank

from ...conftest import write_vectors

HIDDEN, EPOCHS, RATE, FEATURES = 64, 30, 0.01, 8
BACKEND = create_backend("auto")

Group = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64]]


def made_up(groups: int, random: np.random.Generator) -> list[Group]:
    """Features, relevances from 0 to 4, and what relevance comes from, but for noise and how rich the group is.

    Half of the features are of the group: some have many relevant rows, and some have none.
    """
    found = []
    for rows in random.integers(5, 40, groups):
        features = random.normal(size=(rows, FEATURES))
        level = 2 * random.normal(size=FEATURES // 2)
        features[:, FEATURES // 2 :] += level
        worth = 1.5 * features[:, 0] * features[:, 1] + features[:, 2] - np.abs(features[:, 3])
        relevance = np.floor((worth + 0.7 * level.sum() + 0.5 * random.normal(size=rows)) / 1.5 + 1).clip(0, 4)
        found.append((features, relevance, worth))
    return found


def ndcg(groups: list[Group], scores: list[npt.NDArray[np.float64]]) -> float:
    pairs = zip(groups, scores, strict=True)
    return float(np.mean([ndcg_score([2**r - 1], [s], k=10) if r.any() else 1.0 for (_, r, _), s in pairs]))


def written(folder: Path, splits: dict[str, list[Group]]) -> Dataset:
    files = {
        split: [list(zip(*half, strict=True))[:2] for half in (groups[::2], groups[1::2])]
        for split, groups in splits.items()
    }
    return write_vectors(folder / "dataset", files, task="ranking", label_names=())


def test_groups_are_ranked_better_than_by_scikit_learns_regression_and_nearly_as_well_as_can_be(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    splits = {"train": made_up(200, random), "validation": made_up(50, random), "test": made_up(100, random)}
    regression = MLPRegressor(hidden_layer_sizes=(HIDDEN,), max_iter=EPOCHS, learning_rate_init=RATE, random_state=0)
    regression.fit(*(np.concatenate(parts) for parts in list(zip(*splits["train"], strict=True))[:2]))
    by_regression = ndcg(splits["test"], [regression.predict(features) for features, *_ in splits["test"]])
    by_chance = ndcg(splits["test"], [random.random(len(worth)) for *_, worth in splits["test"]])
    at_best = ndcg(splits["test"], [worth for *_, worth in splits["test"]])

    dataset = written(tmp_path, splits)
    settings = Train(epochs=EPOCHS, batch_size=8, learning_rate=RATE, model_options={"hidden": [HIDDEN]})
    job = Job(dataset, settings, str(tmp_path / "run"), BACKEND, reference=2)
    outcome = run_local(partial(train_rank, job), 2, backend=BACKEND)[0]
    ours = outcome.evaluations["test"].figures["ndcg_at_10"]
    assert by_chance < 0.65 < by_regression + 0.03 < ours, (by_chance, by_regression, ours, at_best)
    assert ours > at_best - 0.05


STRATEGIES = {
    "allreduce": {},
    "powersgd": {"strategy": {"kind": "allreduce", "compression": "powersgd"}},
    "local_sgd": {"strategy": {"kind": "local_sgd", "period": 3}},
    "ist": {"strategy": {"kind": "ist", "period": 4}, "learning_rate": 0.05},
    "hogwild": {"strategy": "hogwild", "optimizer": "sgd", "learning_rate": 0.1},
}


def test_ranks_that_share_groups_unevenly_learn_with_every_kind_of_strategy(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    dataset = written(tmp_path, {"train": made_up(61, random), "validation": made_up(25, random)})
    settings = Train(epochs=12, batch_size=4, learning_rate=RATE, model_options={"hidden": [HIDDEN]})
    job = Job(dataset, settings, str(tmp_path / "run"), BACKEND, reference=2)
    found = run_local(partial(train_with_each, job), 2, backend=BACKEND)[0]
    assert found.keys() == STRATEGIES.keys() and min(found.values()) > 0.75, found


def train_with_each(job: Job, rank: Rank) -> dict[str, float]:
    """NDCG by strategy."""
    found = {}
    for name, changed in STRATEGIES.items():
        settings = Train(**job.settings.model_dump(exclude_unset=True) | changed)
        if outcome := train_rank(replace(job, settings=settings, folder=f"{job.folder}-{name}"), rank):
            found[name] = outcome.evaluations["validation"].figures["ndcg_at_10"]
    return found


def test_a_step_is_of_the_mean_over_groups_whatever_ranks_they_are_on(tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    dataset = written(tmp_path, {"train": made_up(22, random), "validation": made_up(7, random)})
    recipe = {"optimizer": "sgd", "learning_rate": 0.5, "epochs": 3, "schedule": "constant"}
    losses = []
    for ranks in (1, 3):
        settings = Train(batch_size=-(-22 // ranks), **recipe)  # all groups in one step
        job = Job(dataset, settings, str(tmp_path / f"run-{ranks}"), BACKEND, reference=ranks)
        outcome = run_local(partial(train_rank, job), ranks, backend=BACKEND)[0]
        losses.append([(epoch["train_loss"], epoch["validation_loss"]) for epoch in outcome.history])
    assert losses[0] == [pytest.approx(each, rel=1e-5) for each in losses[1]]
    assert losses[0][-1][0] < losses[0][0][0]
