"""Replicas that several ranks share: the steps of whole replicas, and checkpoints that go on in any layout."""

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from sparkdl.cluster import Rank, run_local
from sparkdl.collectives import TorchBackend
from sparkdl.data import Dataset
from sparkdl.layouts import GridPlan, PipelinePlan, SharingPlan, TensorPlan
from sparkdl.models import NETWORK_FILE, load_network
from sparkdl.settings import RankLayout, Train
from sparkdl.training.checkpoints.parted_checkpoint import best_weights
from sparkdl.training.checks.shared_replicas import tried_plan
from sparkdl.training.checks.some_rows import some_rows
from sparkdl.training.checks.tried_model import tried_model
from sparkdl.training.job import Job, TrainingResult
from sparkdl.training.model_folder import write_model_folder
from sparkdl.training.network_to_train import build_model

from .interruptions import assert_equal, continued, interrupt, states_of, weights_of

EPOCHS = 13  # of eight steps: a hundred and more
REPLICAS = 2
BACKEND = TorchBackend()
UNEQUAL = {"rows_per_second": 0.0, "seconds": 0.0}  # figures that depend on the hour


def settings_for(**changes: object) -> Train:
    """Widths that two ranks cannot share evenly, and a last layer that nobody cuts."""
    options = {
        "model_options": {"hidden": [17, 13, 11, 9]},
        "optimizer": "adam",
        "learning_rate": 0.01,
        "clip_norm": 0.5,
        "schedule": "constant",
        "epochs": EPOCHS,
        "batch_size": 5,
        "seed": 3,
    }
    return Train(**{**options, **changes})


WHOLE = RankLayout(data=REPLICAS)
TENSOR = RankLayout(data=REPLICAS, tensor=2)
PIPELINE = RankLayout(data=REPLICAS, pipeline=2, microbatches=3)
"""Of batches of five rows, and of fewer at the end of an epoch."""
GRID = RankLayout(data=REPLICAS, tensor=2, pipeline=2, microbatches=3)


def begin_all(jobs: dict[str, Job], rank: Rank) -> dict[str, TrainingResult | None]:
    """Train each job, and interrupt it in the middle of an epoch where its name says so."""
    outcomes = {}
    for name, job in jobs.items():
        if "begun" in name:
            interrupt(job, rank, at=6 * getattr(job.plan, "microbatches", 1))
        else:
            outcomes[name] = continued(job, rank)
    return outcomes


class Trained:
    """What launches of two replicas have left behind: of one rank each, and of two in each layout, one interrupted."""

    def __init__(self, folder: Path, clouds: Dataset) -> None:
        self.folder, self.clouds = folder, clouds
        self._plans: dict[str, SharingPlan | None] = {}
        self.outcomes = self.train(WHOLE, "whole", "whole, begun")
        for name, layout in (("tensor", TENSOR), ("pipeline", PIPELINE), ("grid", GRID)):
            self.outcomes |= self.train(layout, name, f"{name}, begun")
            shutil.copytree(folder / f"{name}, begun", folder / f"{name}, interrupted")
            self.outcomes |= self.train(layout, f"{name}, interrupted")

    def plan_of(self, layout: RankLayout) -> SharingPlan | None:
        """One for all runs in a layout: stages are cut by times that are measured."""
        key = layout.model_dump_json()
        if key not in self._plans:
            model, rows = build_model(self.clouds, settings_for()), some_rows(self.clouds)
            shared = layout.ranks_of_replica > 1
            self._plans[key] = tried_plan(model, rows, layout, batch_size=5) if shared else None
        return self._plans[key]

    def job(self, folder: Path, layout: RankLayout, **changes: object) -> Job:
        return Job(self.clouds, settings_for(**changes), str(folder), BACKEND, REPLICAS, plan=self.plan_of(layout))

    def train(self, layout: RankLayout, *names: str) -> dict[str, TrainingResult]:
        jobs = {
            name: self.job(self.folder / name, layout, checkpoint_steps=1 if "begun" in name else None)
            for name in names
        }
        ranks = REPLICAS * layout.ranks_of_replica
        found: dict[str, TrainingResult] = run_local(partial(begin_all, jobs), ranks, backend=BACKEND)[0]
        return found


@pytest.fixture(scope="module")
def trained(clouds: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(tmp_path_factory.mktemp("shared"), clouds)


def assert_alike(ours: TrainingResult, theirs: TrainingResult) -> None:
    for one, other in zip(ours.history, theirs.history, strict=True):
        assert one | UNEQUAL == pytest.approx(other | UNEQUAL, rel=1e-4)


SHARED = pytest.mark.parametrize("layout", ["tensor", "pipeline", "grid"])


@SHARED
def test_ranks_that_share_a_replica_take_the_same_steps_as_one_with_all_of_it(trained: Trained, layout: str) -> None:
    assert_alike(trained.outcomes[layout], trained.outcomes["whole"])
    whole, shared = weights_of(trained.folder / "whole"), weights_of(trained.folder / layout)
    for name, value in whole.items():
        torch.testing.assert_close(shared[name], value, rtol=1e-4, atol=1e-5)
    ours, theirs = (trained.outcomes[name].evaluations["validation"].figures for name in (layout, "whole"))
    assert ours == pytest.approx(theirs, rel=1e-4)


def test_no_rank_writes_a_layer_that_is_cut(trained: Trained) -> None:
    shared, *shards = states_of(trained.folder / "tensor")
    assert "model" not in shared and "optimizer" not in shared
    rows = [len(each["model"]["1.weight"]) for each in shards]
    assert rows == [9, 8] * REPLICAS
    assert all(torch.equal(each["model"]["9.weight"], shards[0]["model"]["9.weight"]) for each in shards)
    assert [each["optimizer"]["3.weight@exp_avg"].shape for each in shards] == [(13, 9), (13, 8)] * REPLICAS


def test_no_rank_of_a_pipeline_writes_a_layer_of_another_stage(trained: Trained) -> None:
    shared, *shards = states_of(trained.folder / "pipeline")
    assert "model" not in shared and "optimizer" not in shared
    first, last = ({name for name in each["model"] if name.endswith("weight")} for each in shards[:REPLICAS])
    assert first and last and first.isdisjoint(last) and "9.weight" in last
    assert {name.partition("@")[0] for name in shards[0]["optimizer"] if "weight" in name} == first
    assert_equal(shards[0]["model"], shards[2]["model"])


def test_ranks_of_a_grid_write_their_parts_of_their_stages(trained: Trained) -> None:
    shared, *shards = states_of(trained.folder / "grid")
    assert "model" not in shared and "optimizer" not in shared
    first, other, last, *_ = (each["model"] for each in shards)
    assert set(first) == set(other) and not {name for name in first if name.endswith("weight")} & set(last)
    assert (len(first["1.weight"]), len(other["1.weight"])) == (9, 8)
    assert_equal(first, shards[4]["model"])


def test_ranks_of_a_replica_draw_the_same_for_parts_of_a_layer_and_apart_for_other_layers(trained: Trained) -> None:
    for layout, same in (("tensor", True), ("pipeline", False)):
        _, first, second, *_ = states_of(trained.folder / layout)
        assert torch.equal(first["random"]["torch"], second["random"]["torch"]) is same


@SHARED
def test_an_interruption_in_the_middle_of_an_epoch_changes_no_bit(trained: Trained, layout: str) -> None:
    assert_equal(states_of(trained.folder / f"{layout}, interrupted"), states_of(trained.folder / layout))


@pytest.mark.parametrize(
    ("begun", "layout", "changes"),
    [
        ("whole", TENSOR, {}),
        ("whole", PIPELINE, {}),
        ("tensor", WHOLE, {}),
        ("tensor", RankLayout(data=REPLICAS, tensor=3), {}),
        ("tensor", RankLayout(data=REPLICAS, tensor=2, plan={"3": "colwise", "5": "rowwise"}), {}),
        ("tensor", WHOLE, {"strategy": {"kind": "allreduce", "shard": "all"}}),
        ("tensor", PIPELINE, {}),
        ("pipeline", WHOLE, {}),
        ("pipeline", RankLayout(data=REPLICAS, pipeline=2, schedule="interleaved"), {}),
        ("pipeline", TENSOR, {}),
        ("pipeline", GRID, {}),
        ("grid", WHOLE, {}),
        ("grid", TENSOR, {}),
    ],
    ids=[
        *("whole, then tensor", "whole, then pipeline", "tensor, then whole", "tensor, otherwise"),
        *("tensor, then a given plan", "tensor, then shards"),
        *("tensor, then pipeline", "pipeline, then whole", "pipeline, otherwise", "pipeline, then tensor"),
        *("pipeline, then grid", "grid, then whole", "grid, then tensor"),
    ],
)
def test_a_checkpoint_goes_on_in_another_layout(
    trained: Trained, tmp_path: Path, begun: str, layout: RankLayout, changes: dict
) -> None:
    """With its weights, moments and rows: as if it had been in that one from the beginning."""
    shutil.copytree(trained.folder / f"{begun}, begun", tmp_path / "run")
    jobs = {"on": trained.job(tmp_path / "run", layout, epochs=3, **changes)}
    ranks, run = REPLICAS * layout.ranks_of_replica, partial(begin_all, jobs)
    found = run_local(run, ranks, backend=BACKEND, on_message=lambda rank, message: None)[0]["on"]
    expected = trained.outcomes["whole"]
    assert_alike(found, replace(expected, history=expected.history[:3]))


@pytest.mark.parametrize("layout", [TENSOR, PIPELINE, GRID], ids=["tensor", "pipeline", "grid"])
def test_gradients_of_parts_travel_in_16_bits_as_those_of_whole_replicas(
    trained: Trained, tmp_path: Path, layout: RankLayout
) -> None:
    found = []
    for each in (WHOLE, layout):
        compressed = {"kind": "allreduce", "compression": "float16"}
        jobs = {"run": trained.job(tmp_path / str(each.ranks_of_replica), each, epochs=3, strategy=compressed)}
        ranks = REPLICAS * each.ranks_of_replica
        found.append(run_local(partial(begin_all, jobs), ranks, backend=BACKEND)[0]["run"])
    for one, other in zip(*(each.history for each in found), strict=True):
        assert one["train_loss"] == pytest.approx(other["train_loss"], rel=1e-3)
    assert found[0].history[0]["train_loss"] != trained.outcomes["whole"].history[0]["train_loss"]


@SHARED
def test_the_registered_network_answers_as_the_best_parts_do(trained: Trained, tmp_path: Path, layout: str) -> None:
    settings, checkpoint = settings_for(), trained.outcomes[layout].checkpoint
    traced = tried_model(trained.clouds, settings)[1]
    write_model_folder(tmp_path, trained.clouds, settings, checkpoint, traced=traced, in_parts=True)
    model = build_model(trained.clouds, settings).eval()
    model.load_state_dict(best_weights(checkpoint))
    rows = some_rows(trained.clouds)
    torch.testing.assert_close(load_network(tmp_path / NETWORK_FILE)(rows), model(rows))


def test_a_plan_is_plain_data(trained: Trained) -> None:
    """It goes to each rank with the job."""
    plan = trained.plan_of(TENSOR)
    assert isinstance(plan, TensorPlan) and [block.columns for block in plan.blocks] == [("1",), ("5",)]
    plan = trained.plan_of(PIPELINE)
    assert isinstance(plan, PipelinePlan) and len(plan.cuts) == 1
    plan = trained.plan_of(GRID)
    assert isinstance(plan, GridPlan) and plan.ranks == 4 and not plan.tensor.front
