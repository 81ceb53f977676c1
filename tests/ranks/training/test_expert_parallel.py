"""Ranks that share the experts of a network: the steps of whole replicas, and checkpoints that go on in any layout."""

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from sparkdl.cluster import Rank, run_local
from sparkdl.collectives import TorchBackend
from sparkdl.data import Dataset
from sparkdl.models import NETWORK_FILE, load_network
from sparkdl.settings import RankLayout, Train
from sparkdl.training.checkpoints.parted_checkpoint import best_weights
from sparkdl.training.checks.shared_replicas import tried_plan
from sparkdl.training.checks.some_rows import some_rows
from sparkdl.training.checks.tried_model import tried_model
from sparkdl.training.job import Job, TrainingResult
from sparkdl.training.model_folder import write_model_folder
from sparkdl.training.network_to_train import build_model

from .interruptions import assert_equal, continued, interrupt, states_of

BACKEND = TorchBackend()
UNEQUAL = {"rows_per_second": 0.0, "seconds": 0.0}  # figures that depend on the hour
WHOLE, DEALT = RankLayout(data=2), RankLayout(experts=2)
EXPERTS = "2.mixture.experts"


def settings_for(*, balance: float = 0.0, **changes: object) -> Train:
    """Five experts, which two ranks cannot share evenly; at the end of an epoch some ranks have no rows left."""
    options = {
        "model": "mixture_of_experts",
        "model_options": {"width": 12, "experts": 5, "hidden": 9, "layers": 2, "balance": balance},
        "optimizer": "adam",
        "learning_rate": 0.01,
        "clip_norm": 0.5,
        "schedule": "constant",
        "epochs": 6,  # of nine steps each
        "batch_size": 6,
        "seed": 3,
    }
    return Train(**{**options, **changes})


BALANCED = settings_for(balance=0.1, epochs=100, batch_size=106)
"""Of which a step has all rows, so that they are the same ones however many ranks there are."""


def train_all(jobs: dict[str, Job], rank: Rank) -> dict[str, TrainingResult | None]:
    """Train each job, and interrupt it in the middle of an epoch where its name says so."""
    outcomes = {}
    for name, job in jobs.items():
        if name == "begun":
            interrupt(job, rank, at=12)
        else:
            outcomes[name] = continued(job, rank)
    return outcomes


class Runs:
    """Runs on the clouds, each in a folder of its own."""

    def __init__(self, folder: Path, clouds: Dataset) -> None:
        self.folder, self.clouds = folder, clouds

    def job(self, name: str, layout: RankLayout, settings: Train) -> Job:
        model, rows = build_model(self.clouds, settings), some_rows(self.clouds)
        plan = tried_plan(model, rows, layout, batch_size=6) if layout.has_parts else None
        return Job(self.clouds, settings, str(self.folder / name), BACKEND, layout.replicas, plan=plan)

    def train(self, *jobs: tuple[str, RankLayout, Train]) -> dict[str, TrainingResult]:
        """Those of as many ranks each, in one launch."""
        made = {name: self.job(name, layout, settings) for name, layout, settings in jobs}
        ranks = jobs[0][1].replicas
        run, quiet = partial(train_all, made), lambda rank, message: None
        found: dict[str, TrainingResult] = run_local(run, ranks, backend=BACKEND, on_message=quiet)[0]
        return found


@pytest.fixture(scope="module")
def runs(clouds: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("experts"), clouds)


@pytest.fixture(scope="module")
def trained(runs: Runs) -> dict[str, TrainingResult]:
    """On two ranks: with whole replicas, with dealt experts, and with these until the middle of an epoch."""
    settings, short = settings_for(), settings_for(epochs=3)
    begun = settings_for(checkpoint_steps=1)
    outcomes = runs.train(
        *(("whole", WHOLE, settings), ("dealt", DEALT, settings), ("begun", DEALT, begun)),
        ("balanced", DEALT, BALANCED),
    )
    for name in ("interrupted", "to whole", "to shards", "to four", "to squared"):
        shutil.copytree(runs.folder / "begun", runs.folder / name)
    shards = settings_for(epochs=3, strategy={"kind": "allreduce", "shard": "all"})
    return outcomes | runs.train(
        ("interrupted", DEALT, settings), ("to whole", WHOLE, short), ("to shards", WHOLE, shards)
    )


def assert_alike(ours: TrainingResult, theirs: TrainingResult) -> None:
    for one, other in zip(ours.history, theirs.history, strict=True):
        assert one | UNEQUAL == pytest.approx(other | UNEQUAL, rel=1e-4)


def test_ranks_that_share_experts_take_the_steps_of_whole_replicas(trained: dict[str, TrainingResult]) -> None:
    assert_alike(trained["dealt"], trained["whole"])
    ours, theirs = (trained[name].evaluations["validation"].figures for name in ("dealt", "whole"))
    assert ours == pytest.approx(theirs, rel=1e-4)


@pytest.fixture(scope="module")
def alone(runs: Runs) -> TrainingResult:
    """A hundred steps on one rank, with gates that are balanced."""
    return runs.train(("alone", RankLayout(), BALANCED))["alone"]


def test_a_hundred_steps_with_balanced_gates_are_those_of_one_rank(
    trained: dict[str, TrainingResult], alone: TrainingResult
) -> None:
    assert_alike(trained["balanced"], alone)


def test_no_rank_has_the_experts_of_another_one(runs: Runs, trained: dict[str, TrainingResult]) -> None:
    shared, *shards = states_of(runs.folder / "dealt")
    assert "model" not in shared and "optimizer" not in shared
    assert [len(each["model"][f"{EXPERTS}.up"]) for each in shards] == [3, 2]
    assert [len(each["optimizer"][f"{EXPERTS}.down@exp_avg"]) for each in shards] == [3, 2]
    assert_equal(*(each["model"]["1.weight"] for each in shards))


def test_an_interruption_in_the_middle_of_an_epoch_changes_no_bit(
    runs: Runs, trained: dict[str, TrainingResult]
) -> None:
    assert_equal(states_of(runs.folder / "interrupted"), states_of(runs.folder / "dealt"))


@pytest.mark.parametrize("layout", ["whole", "shards"])
def test_a_checkpoint_goes_on_in_another_layout(trained: dict[str, TrainingResult], layout: str) -> None:
    expected = trained["whole"]
    assert_alike(trained[f"to {layout}"], replace(expected, history=expected.history[:3]))


def test_replicas_of_dealt_experts_take_the_steps_of_whole_replicas(
    runs: Runs, trained: dict[str, TrainingResult], alone: TrainingResult
) -> None:
    """On four ranks, two of which have no rows in the last step; one of the runs had been on two ranks until then."""
    settings = settings_for(batch_size=13, epochs=5)
    of_four, squared = RankLayout(data=4), RankLayout(data=2, experts=2)
    found = runs.train(
        ("four", of_four, settings),
        ("squared", squared, settings),
        ("to four", of_four, settings),
        ("to squared", squared, settings),
        ("balanced on four", squared, BALANCED),
    )
    assert_alike(found["balanced on four"], alone)
    assert_alike(found["squared"], found["four"])
    assert_alike(found["to squared"], found["to four"])


def test_the_registered_network_answers_as_the_best_parts_do(
    runs: Runs, trained: dict[str, TrainingResult], tmp_path: Path
) -> None:
    settings, checkpoint = settings_for(), trained["dealt"].checkpoint
    traced = tried_model(runs.clouds, settings)[1]
    write_model_folder(tmp_path, runs.clouds, settings, checkpoint, traced=traced, in_parts=True)
    model = build_model(runs.clouds, settings).eval()
    model.load_state_dict(best_weights(checkpoint))
    rows = some_rows(runs.clouds)
    torch.testing.assert_close(load_network(tmp_path / NETWORK_FILE)(rows), model(rows))
