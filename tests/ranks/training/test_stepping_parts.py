"""Ranks step alone with replicas that several of them share: the steps of whole replicas, in each layout."""

import shutil
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sparkdl.cluster import Rank, run_local
from sparkdl.collectives import TorchBackend
from sparkdl.data import Dataset
from sparkdl.errors import RankError
from sparkdl.layouts import PipelinePlan, SharingPlan, TensorPlan
from sparkdl.models import NETWORK_FILE, load_network
from sparkdl.settings import RankLayout, Train
from sparkdl.training.checkpoints.checkpoint import load_manifest
from sparkdl.training.checkpoints.checkpoint_folder import latest
from sparkdl.training.checks.shared_replicas import tried_plan
from sparkdl.training.checks.some_rows import some_rows
from sparkdl.training.checks.tried_model import tried_model
from sparkdl.training.job import Job, TrainingResult
from sparkdl.training.loop import train_rank
from sparkdl.training.model_folder import write_model_folder
from sparkdl.training.network_to_train import build_model

from .interruptions import assert_equal, continued, interrupt_after, kill_at_mean, states_of, weights_of

BACKEND, EPOCHS = TorchBackend(), 3
REPLICAS = 3
"""Of 36, 35 and 35 rows: in the last of eight steps of an epoch, two of them have none."""
BATCH = 5
BEGUN = 12
"""Steps after which runs are interrupted: one and a half epochs, and for local SGD three periods."""
STRATEGIES: dict[str, dict[str, object]] = {
    "local_sgd": {"kind": "local_sgd", "period": 4, "momentum": "averaged"},
    "sparknet": {"kind": "sparknet", "period": 5},  # epochs end between two means
    "post_local_sgd": {"kind": "post_local_sgd", "after_epochs": 1, "period": 3},
    "diloco": {"kind": "diloco", "period": 5},
    "easgd": {"kind": "easgd", "period": 5},
    "front": {"kind": "local_sgd", "period": 3},
    "tied": {"kind": "local_sgd", "period": 3},
}
WHOLE = RankLayout(data=REPLICAS)
TENSOR = RankLayout(data=REPLICAS, tensor=2)
PIPELINE = RankLayout(data=REPLICAS, pipeline=2, microbatches=3)
GRID = RankLayout(data=REPLICAS, tensor=2, pipeline=2, microbatches=3)
LAYOUTS = {"whole": WHOLE, "tensor": TENSOR, "pipeline": PIPELINE, "grid": GRID}
ALL = [name for name in STRATEGIES if name not in ("front", "tied")]
RUNS = {
    "whole": list(STRATEGIES),
    "tensor": [*ALL, "front"],
    "pipeline": [*ALL, "tied"],
    "grid": ["local_sgd", "sparknet"],
}
SHARED = pytest.mark.parametrize(
    ("layout", "name"), [(layout, name) for layout, names in RUNS.items() for name in names if layout != "whole"]
)
UNEQUAL = {"rows_per_second": 0.0, "seconds": 0.0}  # figures that depend on the hour


class Double(nn.Module):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.double()


def network(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """In float64, so that a difference is one of methods; of widths that two ranks cannot share evenly."""
    widths = *input_shape, 17, 13, 11, num_classes
    layers = [layer for sizes in pairwise(widths) for layer in (nn.Linear(*sizes), nn.Tanh())]
    return nn.Sequential(Double(), *layers[:-1]).double()


def convolutions(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Points in four dimensions as images; ranks compute the convolutions for different rows."""
    images = nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.Flatten()
    return nn.Sequential(
        Double(), *images, nn.Linear(16, 21), nn.Tanh(), nn.Linear(21, 13), nn.Tanh(), nn.Linear(13, num_classes)
    ).double()


def tied(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """The second layer and the last but one have the same weights, in two stages."""
    widths = *input_shape, 13, 13, 13, 13, 13, num_classes
    layers = [layer for sizes in pairwise(widths) for layer in (nn.Linear(*sizes), nn.Tanh())]
    found = nn.Sequential(Double(), *layers[:-1]).double()
    found[9].weight = found[3].weight
    return found


MODELS = {"front": convolutions, "tied": tied}


def settings_for(name: str, **changes: object) -> Train:
    options = {
        "model": MODELS.get(name, network),
        "optimizer": "sgd",
        "optimizer_options": {"momentum": 0.9},
        "learning_rate": 0.05,
        "clip_norm": 0.5,
        "schedule": "constant",
        "epochs": EPOCHS,
        "batch_size": BATCH,
        "seed": 3,
        "strategy": STRATEGIES[name],
    }
    return Train(**{**options, **changes})


def train_all(jobs: dict[str, Job], rank: Rank) -> dict[str, TrainingResult | None]:
    """Train with each strategy, interrupt another run in the middle of its second epoch, and go on with that one."""
    outcomes = {}
    for name, job in jobs.items():
        outcomes[name] = train_rank(job, rank)
        settings = job.settings.model_copy(update={"checkpoint_steps": 1})
        begun = replace(job, folder=f"{job.folder}, begun", settings=settings)
        interrupt_after(begun, rank, steps=BEGUN if job.plan else BEGUN + 1)  # whole replicas write in the background
        copy = replace(job, folder=f"{job.folder}, interrupted")
        if rank.rank == 0:
            shutil.copytree(begun.folder, copy.folder)
        with job.backend.connect() as world:
            world.barrier()
        continued(copy, rank)
    return outcomes


class Trained:
    """What a launch in each layout has left behind."""

    def __init__(self, folder: Path, clouds: Dataset) -> None:
        self.folder, self.clouds = folder, clouds
        self._plans: dict[tuple[str, str], SharingPlan | None] = {}
        self.outcomes: dict[tuple[str, str], TrainingResult] = {}
        for layout in LAYOUTS:
            jobs = {name: self.job(folder / layout / name, layout, name) for name in RUNS[layout]}
            found = self.launch(partial(train_all, jobs), layout)
            self.outcomes |= {(layout, name): outcome for name, outcome in found.items()}

    def plan_of(self, layout: str, name: str) -> SharingPlan | None:
        """One for all runs of a network in a layout: stages are cut by times that are measured."""
        if layout == "whole":
            return None
        key = layout, name if name in MODELS else ""
        if key not in self._plans:
            model, rows = build_model(self.clouds, settings_for(name)), some_rows(self.clouds)
            plan = tried_plan(model, rows, LAYOUTS[layout], batch_size=BATCH)
            self._plans[key] = plan._replace(cuts=(6,)) if isinstance(plan, PipelinePlan) and name == "tied" else plan
        return self._plans[key]

    def job(self, folder: Path, layout: str, name: str, **changes: object) -> Job:
        plan = self.plan_of(layout, name)
        return Job(self.clouds, settings_for(name, **changes), str(folder), BACKEND, REPLICAS, plan=plan)

    def launch(self, run: partial, layout: str) -> Any:
        """What rank 0 returns."""
        ranks = REPLICAS * LAYOUTS[layout].ranks_of_replica
        return run_local(run, ranks, backend=BACKEND, on_message=lambda *_: None)[0]


@pytest.fixture(scope="module")
def trained(clouds: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(tmp_path_factory.mktemp("stepping"), clouds)


def assert_alike(ours: TrainingResult, theirs: TrainingResult) -> None:
    for one, other in zip(ours.history, theirs.history, strict=True):
        assert one | UNEQUAL == pytest.approx(other | UNEQUAL, rel=1e-7)


@SHARED
def test_the_steps_and_the_consensus_are_those_of_whole_replicas(trained: Trained, layout: str, name: str) -> None:
    """Each strategy learns something else, so that the comparison says something."""
    assert_alike(trained.outcomes[layout, name], trained.outcomes["whole", name])
    shared, whole = weights_of(trained.folder / layout / name), weights_of(trained.folder / "whole" / name)
    for key, value in whole.items():
        torch.testing.assert_close(shared[key], value, rtol=1e-7, atol=1e-9)
    losses = {each: found.history[-1]["train_loss"] for (_, each), found in trained.outcomes.items()}
    assert len(set(losses.values())) == len(STRATEGIES)


@SHARED
def test_an_interruption_in_the_middle_of_an_epoch_changes_no_bit(trained: Trained, layout: str, name: str) -> None:
    folder = trained.folder / layout
    assert load_manifest(str(latest(f"{folder / name}, begun"))).step == BEGUN
    assert_equal(states_of(f"{folder / name}, interrupted"), states_of(folder / name))


def killed_in_a_mean(job: Job, rank: Rank) -> None:
    """Train; rank 1 is killed when it has begun to send its part for the fifth time."""
    if rank.rank == 1:
        kill_at_mean(4)
    train_rank(job, rank)


@pytest.mark.parametrize("layout", ["tensor", "pipeline"])
def test_a_kill_in_the_middle_of_a_mean_changes_no_bit(trained: Trained, tmp_path: Path, layout: str) -> None:
    job = trained.job(tmp_path, layout, "local_sgd", checkpoint_steps=1)
    with pytest.raises(RankError, match="killed, out of memory, or crashed"):
        trained.launch(partial(killed_in_a_mean, job), layout)
    trained.launch(partial(continued, job), layout)
    assert_equal(states_of(job.folder), states_of(trained.folder / layout / "local_sgd"))


@pytest.mark.parametrize("layout", ["tensor", "pipeline", "grid"])
def test_replicas_differ_between_two_means_and_the_best_weights_are_their_mean(
    trained: Trained, tmp_path: Path, layout: str
) -> None:
    place = LAYOUTS[layout].ranks_of_replica
    _, first, *others = states_of(trained.folder / layout / "sparknet")
    assert not torch.equal(first["model"]["1.weight"], others[place - 1]["model"]["1.weight"])
    outcome, settings = trained.outcomes[layout, "sparknet"], settings_for("sparknet")
    figures, best = outcome.evaluations["validation"].figures, outcome.history[outcome.best_epoch]
    assert figures["loss"] == pytest.approx(best["validation_loss"], rel=1e-7)
    assert outcome.best_epoch == EPOCHS - 1
    traced = tried_model(trained.clouds, settings)[1]
    write_model_folder(tmp_path, trained.clouds, settings, outcome.checkpoint, traced=traced, in_parts=True)
    model, rows = build_model(trained.clouds, settings).eval(), some_rows(trained.clouds)
    model.load_state_dict(weights_of(trained.folder / "whole" / "sparknet"))
    torch.testing.assert_close(load_network(tmp_path / NETWORK_FILE)(rows), model(rows))


@pytest.mark.parametrize(
    ("begun", "layout"),
    [
        *(("whole", "tensor"), ("whole", "pipeline"), ("tensor", "whole"), ("tensor", "grid")),
        *(("pipeline", "tensor"), ("grid", "pipeline")),
    ],
)
def test_a_checkpoint_goes_on_in_another_layout(trained: Trained, tmp_path: Path, begun: str, layout: str) -> None:
    """Right after a mean of weights and moments: as if it had been in that one from the beginning."""
    shutil.copytree(f"{trained.folder / begun / 'local_sgd'}, begun", tmp_path / "run")
    job = trained.job(tmp_path / "run", layout, "local_sgd")
    assert_alike(trained.launch(partial(continued, job), layout), trained.outcomes["whole", "local_sgd"])


@pytest.mark.parametrize(("name", "after"), [("sparknet", "easgd"), ("easgd", "allreduce"), ("diloco", "diloco")])
def test_another_strategy_or_number_of_replicas_goes_on_from_the_consensus(
    trained: Trained, tmp_path: Path, name: str, after: str
) -> None:
    """With a rate of nothing, it stays what it is."""
    folder = trained.folder / "tensor" / f"{name}, begun"
    shutil.copytree(folder, tmp_path / "run")
    still = {"learning_rate": 1e-12, "strategy": {**STRATEGIES.get(after, {}), "kind": after}, "epochs": 2}
    job = trained.job(tmp_path / "run", "tensor", name, **still, optimizer_options={})
    run_local(partial(continued, job), 2 * 2, backend=BACKEND, on_message=lambda *_: None)
    ours = weights_of(tmp_path / "run")
    for key, value in weights_of(folder).items():
        torch.testing.assert_close(ours[key], value, rtol=1e-9, atol=1e-9)


def test_what_the_runs_are_about_is_there(trained: Trained) -> None:
    front = trained.plan_of("tensor", "front")
    assert isinstance(front, TensorPlan) and front.front == ("2.weight", "2.bias")
    *_, first, last = states_of(trained.folder / "pipeline" / "tied")
    torch.testing.assert_close(first["model"]["3.weight"], last["model"]["9.weight"], rtol=1e-12, atol=1e-12)
