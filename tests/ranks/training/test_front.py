"""First layers for different rows on the ranks of a replica: the steps, and the checkpoints, of whole replicas."""

import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from sparkdl.cluster import Rank, run_local
from sparkdl.collectives import TorchBackend
from sparkdl.data import Dataset
from sparkdl.layouts import SharingPlan, TensorPlan
from sparkdl.settings import RankLayout, Train
from sparkdl.training.checkpoints.checkpoint_folder import latest
from sparkdl.training.checks.shared_replicas import tried_plan
from sparkdl.training.checks.some_rows import some_rows
from sparkdl.training.job import Job, TrainingResult
from sparkdl.training.loop import train_rank
from sparkdl.training.network_to_train import build_model

from .interruptions import interrupt, states_of, weights_of

BACKEND, REPLICAS = TorchBackend(), 2
ROWS = 13
"""Of a batch of each replica: seven for one rank, six for the other. The last batch of an epoch is a single row."""
WHOLE, HYBRID = RankLayout(data=REPLICAS), RankLayout(data=REPLICAS, tensor=2)
FROM_WIDE = HYBRID.model_copy(update={"plan": {"wide.0": "colwise", "wide.2": "rowwise"}})
UNEQUAL = {"rows_per_second": 0.0, "seconds": 0.0}  # figures that depend on the hour


class Residual(nn.Module):
    """Points in four dimensions as images, two convolutions of which the second one is passed by, and wide layers."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.enter, self.inner = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.norm = nn.GroupNorm(2, 4)
        layers = nn.Linear(16, 33), nn.ReLU(), nn.Linear(33, 21), nn.ReLU(), nn.Linear(21, num_classes)
        self.wide = nn.Sequential(*layers)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        images = self.enter(points.view(-1, 1, 2, 2))
        answer: torch.Tensor = self.wide((images + self.norm(self.inner(images)).relu()).flatten(1))
        return answer


class Tokens(nn.Module):
    """Points in four dimensions as two tokens with attention and a block of layers each, then wide layers."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.enter = nn.Linear(2, 8)
        # Without biases: the gradient of those of keys is nothing but rounding, of which Adam makes steps.
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, bias=False)
        layers = nn.Linear(16, 33), nn.ReLU(), nn.Linear(33, 21), nn.ReLU(), nn.Linear(21, num_classes)
        self.wide = nn.Sequential(*layers)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.wide(self.block(self.enter(points.view(-1, 2, 2))).flatten(1))
        return answer


def settings_for(**changes: object) -> Train:
    options = {
        "model": Residual,
        "optimizer": "adam",
        "learning_rate": 0.01,
        "clip_norm": 0.5,
        "schedule": "constant",
        "accumulation": 2,
        "epochs": 8,
        "batch_size": ROWS,
        "seed": 3,
    }
    return Train(**{**options, **changes})


def train_all(jobs: dict[str, Job], rank: Rank) -> dict[str, TrainingResult | None]:
    """Train each job, or go on with it, and interrupt it in the middle of an epoch where its name says so."""
    outcomes = {}
    for name, job in jobs.items():
        if "begun" in name:
            interrupt(job, rank, at=7)
        else:
            outcomes[name] = train_rank(job, rank)
    return outcomes


class Trained:
    """What a launch in each layout has left behind: of a whole run, and of one that was interrupted."""

    def __init__(self, folder: Path, clouds: Dataset, kind: type[nn.Module], layout: RankLayout) -> None:
        self.folder, self.clouds, self.kind = folder, clouds, kind
        model = build_model(clouds, settings_for(model=kind))
        self.names = [name for name, _ in model.named_parameters()]
        self.plan = tried_plan(model, some_rows(clouds), layout, batch_size=ROWS)
        self.outcomes = {}
        for name, layout in (("whole", WHOLE), ("hybrid", HYBRID)):
            names = name, f"{name}, begun"
            jobs = {each: self.job(folder / each, layout) for each in names}
            self.outcomes |= self.launch(jobs, layout)

    def job(self, folder: Path, layout: RankLayout, **changes: object) -> Job:
        plan: SharingPlan | None = self.plan if layout is HYBRID else None
        steps, checkpoint = (1, None) if "begun" in folder.name else (None, latest(str(folder)))
        settings = settings_for(model=self.kind, checkpoint_steps=steps, **changes)
        return Job(self.clouds, settings, str(folder), BACKEND, REPLICAS, plan=plan, checkpoint=checkpoint)

    def launch(self, jobs: dict[str, Job], layout: RankLayout) -> dict[str, TrainingResult]:
        ranks, run = REPLICAS * layout.ranks_of_replica, partial(train_all, jobs)
        found: dict[str, TrainingResult] = run_local(run, ranks, backend=BACKEND, on_message=lambda *_: None)[0]
        return found


@pytest.fixture(
    scope="module", params=[(Residual, HYBRID), (Tokens, FROM_WIDE)], ids=["convolutions", "before a given plan"]
)
def trained(clouds: Dataset, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Trained:
    return Trained(tmp_path_factory.mktemp("front"), clouds, *request.param)


def assert_alike(ours: list[dict[str, float]], theirs: list[dict[str, float]]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert one | UNEQUAL == pytest.approx(other | UNEQUAL, rel=1e-4)


def test_the_steps_are_those_of_whole_replicas(trained: Trained) -> None:
    """With uneven shares of rows, none for one of the ranks, clipped gradients, and those of two batches a step."""
    assert isinstance(trained.plan, TensorPlan)
    assert trained.plan.front == tuple(name for name in trained.names if not name.startswith("wide"))
    ours, theirs = trained.outcomes["hybrid"], trained.outcomes["whole"]
    assert_alike(ours.history, theirs.history)
    hybrid, whole = weights_of(trained.folder / "hybrid"), weights_of(trained.folder / "whole")
    for name, value in whole.items():
        torch.testing.assert_close(hybrid[name], value, rtol=1e-4, atol=1e-5)


def test_all_ranks_have_the_same_first_layers_to_the_last_bit(trained: Trained) -> None:
    _, *shards = states_of(trained.folder / "hybrid")
    for name in (name for name in trained.names if not name.startswith(("wide.0", "wide.2.weight"))):
        assert all(torch.equal(each["model"][name], shards[0]["model"][name]) for each in shards[1:])
    assert [len(each["model"]["wide.0.weight"]) for each in shards] == [17, 16] * REPLICAS


@pytest.mark.parametrize(("begun", "layout"), [("whole", HYBRID), ("hybrid", WHOLE)], ids=["to it", "from it"])
def test_a_checkpoint_goes_on_in_the_other_layout(
    trained: Trained, tmp_path: Path, begun: str, layout: RankLayout
) -> None:
    shutil.copytree(trained.folder / f"{begun}, begun", tmp_path / "run")
    found = trained.launch({"on": trained.job(tmp_path / "run", layout, epochs=3)}, layout)["on"]
    assert_alike(found.history, trained.outcomes["whole"].history[:3])
