"""Replicas in shards: the same steps as with whole replicas, and checkpoints that go on wherever they are put."""

import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from sparkdl.cluster import Rank, run_local
from sparkdl.collectives import TorchBackend
from sparkdl.data import Dataset
from sparkdl.models import NETWORK_FILE, load_network
from sparkdl.settings import Train
from sparkdl.training.checkpoints.checkpoint_folder import latest
from sparkdl.training.checkpoints.parted_checkpoint import best_weights
from sparkdl.training.checks.tried_model import tried_model
from sparkdl.training.job import Job, TrainingResult
from sparkdl.training.loop import train_rank
from sparkdl.training.model_folder import write_model_folder
from sparkdl.training.network_to_train import build_model

from .interruptions import assert_equal, interrupt, states_of, weights_of

SIZE = 3
EPOCHS = 13  # of eight steps: a hundred and more
BACKEND = TorchBackend()
UNEQUAL = {"rows_per_second": 0.0, "seconds": 0.0}  # figures that depend on the hour
WHOLE, OPTIMIZER, ALL = None, "optimizer", "all"


class Tied(nn.Module):
    """Blocks in a list, a weight that is used twice, a norm with running means, and one outside of all lists."""

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        self.enter = nn.Linear(width, 7)
        self.blocks = nn.ModuleList(
            [nn.Sequential(nn.Linear(7, 7, bias=False), nn.BatchNorm1d(7), nn.Tanh()) for _ in range(2)]
        )
        self.again = nn.Sequential(nn.Linear(7, 7), nn.Tanh())
        self.blocks[1][0].weight = self.again[0].weight
        self.leave = nn.Linear(7, outputs)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        values = self.enter(rows)
        for block in self.blocks:
            values = values + block(values)
        answer: torch.Tensor = self.leave(self.again(values))
        return answer


def tied(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return Tied(*input_shape, num_classes)


def settings_for(shard: str | None, **changes: object) -> Train:
    """Two of three ranks have no rows in the last batch of an epoch, and widths are not multiples of three."""
    options = {
        "model_options": {"hidden": [17, 13]},
        "strategy": {"kind": "allreduce", "shard": shard},
        "optimizer": "adam",
        "learning_rate": 0.01,
        "clip_norm": 0.5,
        "schedule": "constant",
        "epochs": EPOCHS,
        "batch_size": 5,
        "seed": 3,
    }
    return Train(**{**options, **changes})


def train_all(clouds: Dataset, folder: str, rank: Rank) -> dict[str, TrainingResult | None]:
    """With whole replicas and in shards, and with an interruption in the middle of an epoch: results by name."""
    outcomes = {}
    for name, shard in (("whole", WHOLE), ("optimizer", OPTIMIZER), ("all", ALL)):
        outcomes[name] = train_rank(Job(clouds, settings_for(shard), f"{folder}/{name}", BACKEND, SIZE), rank)
        changes = {"model": tied, "model_options": {}, "accumulation": 2, "epochs": 3, "optimizer": "sgd"}
        job = Job(clouds, settings_for(shard, **changes), f"{folder}/tied, {name}", BACKEND, SIZE)
        outcomes[f"tied, {name}"] = train_rank(job, rank)
    for name, shard in (("whole", WHOLE), ("all", ALL)):
        job = Job(clouds, settings_for(shard, checkpoint_steps=1), f"{folder}/{name}, begun", BACKEND, SIZE)
        interrupt(job, rank, at=6)
    if rank.rank == 0:
        shutil.copytree(f"{folder}/all, begun", f"{folder}/interrupted")
    with BACKEND.connect() as communicator:
        communicator.barrier()
    folder = f"{folder}/interrupted"
    job = Job(clouds, settings_for(ALL), folder, BACKEND, SIZE, checkpoint=latest(folder))
    outcomes["interrupted"] = train_rank(job, rank)
    return outcomes


class Trained:
    """What the ranks of one launch have left behind."""

    def __init__(self, folder: Path, clouds: Dataset) -> None:
        self.folder, self.clouds = folder, clouds
        self.outcomes: dict[str, TrainingResult] = run_local(
            partial(train_all, clouds, str(folder)), SIZE, backend=BACKEND
        )[0]


@pytest.fixture(scope="module")
def trained(clouds: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(tmp_path_factory.mktemp("sharded"), clouds)


def assert_alike(ours: TrainingResult, theirs: TrainingResult, *, rel: float = 1e-4) -> None:
    for one, other in zip(ours.history, theirs.history, strict=True):
        assert one | UNEQUAL == pytest.approx(other | UNEQUAL, rel=rel)


@pytest.mark.parametrize("network", ["", "tied, "])
@pytest.mark.parametrize("shard", [OPTIMIZER, ALL])
def test_in_shards_it_is_the_same_as_with_whole_replicas(trained: Trained, network: str, shard: str) -> None:
    ours, theirs = trained.outcomes[f"{network}{shard}"], trained.outcomes[f"{network}whole"]
    assert_alike(ours, theirs)
    whole = weights_of(trained.folder / f"{network}whole")
    for name, value in weights_of(trained.folder / f"{network}{shard}").items():
        torch.testing.assert_close(value, whole[name], rtol=1e-4, atol=1e-5)
    figures = [each.evaluations["validation"].figures for each in (ours, theirs)]
    assert figures[0] == pytest.approx(figures[1], rel=1e-4)


def test_no_rank_writes_more_than_its_shard(trained: Trained) -> None:
    whole = sum(value.numel() for value in weights_of(trained.folder / "whole").values())
    shared, *shards = states_of(trained.folder / "all")
    assert "model" not in shared and "optimizer" not in shared
    kept = [sum(value.numel() for value in each["model"].values()) for each in shards]
    assert sum(kept) == whole and max(kept) < 0.4 * whole
    moments = [sum(value.numel() for name, value in each["optimizer"].items() if "exp" in name) for each in shards]
    assert moments == [2 * each for each in kept]


def test_an_interruption_in_the_middle_of_an_epoch_changes_no_bit(trained: Trained) -> None:
    assert_equal(states_of(trained.folder / "interrupted"), states_of(trained.folder / "all"))
    for ours, theirs in zip(trained.outcomes["interrupted"].history, trained.outcomes["all"].history, strict=True):
        assert ours | UNEQUAL == theirs | UNEQUAL


def go_on(clouds: Dataset, folder: str, ways: list[tuple[str, str | None]], rank: Rank) -> list[TrainingResult | None]:
    """Go on from what an interruption has left, to the end of the fourth epoch: what was begun, and in which shards."""
    outcomes = []
    for number, (begun, shard) in enumerate(ways):
        own = f"{folder}/{number}"
        with BACKEND.connect() as communicator:
            if rank.rank == 0:
                shutil.copytree(f"{folder}/{begun}, begun", own)
            communicator.barrier()
        job = Job(clouds, settings_for(shard, epochs=4), own, BACKEND, SIZE, checkpoint=latest(own))
        outcomes.append(train_rank(job, rank))
        with BACKEND.connect() as communicator:
            communicator.barrier()
            if rank.rank == 0:
                shutil.rmtree(own)
    return outcomes


@pytest.mark.parametrize(
    ("size", "ways"),
    [
        (SIZE, [("whole", WHOLE), ("whole", ALL), ("all", WHOLE), ("all", OPTIMIZER)]),
        (2, [("all", WHOLE), ("all", ALL)]),
        (4, [("all", WHOLE), ("all", ALL)]),
    ],
    ids=["as many", "fewer", "more"],
)
def test_a_checkpoint_goes_on_in_other_shards_and_on_other_ranks(
    trained: Trained, size: int, ways: list[tuple[str, str | None]]
) -> None:
    """With its weights, moments and rows: as whole replicas do."""
    run = partial(go_on, trained.clouds, str(trained.folder), ways)
    expected, *found = run_local(run, size, backend=BACKEND, on_message=lambda rank, message: None)[0]
    for each in found:
        assert_alike(each, expected)


def test_the_registered_network_answers_as_the_best_shards_do(trained: Trained, tmp_path: Path) -> None:
    for name, changes in (("", {}), ("tied, ", {"model": tied, "model_options": {}})):
        settings = settings_for(ALL, **changes)
        checkpoint = trained.outcomes[f"{name}all"].checkpoint
        traced = tried_model(trained.clouds, settings, ranks=SIZE)[1]
        write_model_folder(tmp_path, trained.clouds, settings, checkpoint, traced=traced)
        network = build_model(trained.clouds, settings).eval()
        network.load_state_dict(best_weights(checkpoint))
        rows = torch.randn(5, 4)
        torch.testing.assert_close(load_network(tmp_path / NETWORK_FILE)(rows), network(rows).detach())
