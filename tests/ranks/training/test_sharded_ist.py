"""Independent subnet training of a network that no rank has as a whole: the same as with the whole, in less memory."""

import shutil
from functools import partial
from pathlib import Path

import pytest
import torch

from sparkdl.cluster import Rank, run_local
from sparkdl.collectives import Backend
from sparkdl.data import Dataset
from sparkdl.models import NETWORK_FILE, load_network
from sparkdl.settings import Train
from sparkdl.training.checkpoints.checkpoint_folder import latest
from sparkdl.training.checkpoints.parted_checkpoint import best_weights
from sparkdl.training.groups import Groups
from sparkdl.training.job import Job, TrainingResult
from sparkdl.training.loop import begin, train_rank
from sparkdl.training.model_folder import write_model_folder
from sparkdl.training.network_to_train import build_hollow_model, build_model
from sparkdl.training.replica import Replica
from sparkdl.training.reports.reporter import Reporter
from sparkdl.training.tasks import Classification

from .interruptions import assert_equal, continued, interrupt, states_of, weights_of

SIZE = 3
EPOCHS = 3
OF_WORDS = {
    "model": "bag_of_words",
    "model_options": {"vocabulary": 40, "width": 17, "hidden": [13], "sparse": True},
    "optimizer": "torch.optim:Adagrad",
    "learning_rate": 0.1,
}
"""A network that begins with an embedding, and an optimizer that takes its sparse gradients."""
UNEQUAL = {"rows_per_second": 0.0, "seconds": 0.0}  # figures that depend on the hour


def settings_for(*, sharded: bool, **changes: object) -> Train:
    """Two hidden layers whose neurons are not the same number on each rank; rounds that epochs cut off."""
    options = {
        "model_options": {"hidden": [17, 13], "dropout": 0.1},
        "strategy": {"kind": "ist", "period": 4, "sharded": sharded},
        "optimizer": "adam",
        "learning_rate": 0.02,
        "schedule": "constant",
        "epochs": EPOCHS,
        "batch_size": 4,
        "seed": 3,
    }
    return Train(**{**options, **changes})


def train_both(
    clouds: Dataset, texts: Dataset, folder: str, backend: Backend, rank: Rank
) -> dict[str, TrainingResult | None]:
    """With the whole network, in parts, and in parts with an interruption in the middle of a round: results by name."""
    outcomes = {}
    for name, sharded in (("whole", False), ("parts", True)):
        job = Job(clouds, settings_for(sharded=sharded), f"{folder}/{name}", backend, SIZE)
        outcomes[name] = train_rank(job, rank)
        job = Job(texts, settings_for(sharded=sharded, **OF_WORDS), f"{folder}/words, {name}", backend, SIZE)
        outcomes[f"words, {name}"] = train_rank(job, rank)
    job = Job(clouds, settings_for(sharded=True, checkpoint_steps=1), f"{folder}/interrupted", backend, SIZE)
    interrupt(job, rank, at=14)
    if rank.rank == 0:
        shutil.copytree(job.folder, f"{folder}/begun")
    outcomes["interrupted"] = continued(job, rank)
    return outcomes


class Trained:
    """What the ranks of one launch have left behind."""

    def __init__(self, folder: Path, backend: Backend, clouds: Dataset, texts: Dataset) -> None:
        self.folder, self.backend, self.clouds = folder, backend, clouds
        train = partial(train_both, clouds, texts, str(folder), backend)
        self.outcomes: dict[str, TrainingResult] = run_local(train, SIZE, backend=backend)[0]

    def job(self, name: str, **changes: object) -> Job:
        """A run that goes on from a copy of what the interruption left."""
        folder = self.folder / name
        shutil.copytree(self.folder / "begun", folder)
        settings = settings_for(**{"sharded": True, "checkpoint_steps": 1, **changes})
        return Job(self.clouds, settings, str(folder), self.backend, SIZE, checkpoint=latest(str(folder)))


@pytest.fixture(scope="module")
def trained(backend: Backend, clouds: Dataset, texts: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(tmp_path_factory.mktemp("sharded"), backend, clouds, texts)


@pytest.mark.parametrize("network", ["", "words, "])
def test_in_parts_it_is_the_same_mathematics_as_with_the_whole_network(trained: Trained, network: str) -> None:
    names = [f"{network}parts", f"{network}whole"]
    parts, whole = (weights_of(trained.folder / name) for name in names)
    assert whole.keys() == parts.keys()
    for name, value in whole.items():
        torch.testing.assert_close(parts[name].float(), value, rtol=1e-6, atol=1e-7)
    for ours, theirs in zip(*(trained.outcomes[name].history for name in names), strict=True):
        assert ours | UNEQUAL == pytest.approx(theirs | UNEQUAL, rel=1e-5)
    ours, theirs = (trained.outcomes[name].evaluations["validation"].figures for name in names)
    assert ours == pytest.approx(theirs, rel=1e-5)


def test_each_rank_keeps_its_numbers_of_every_words_vector(trained: Trained) -> None:
    shapes = [tuple(each["model"]["0.table.weight"].shape) for each in states_of(trained.folder / "words, parts")[1:]]
    assert shapes == [(41, 6), (41, 6), (41, 5)]
    vectors = weights_of(trained.folder / "words, parts")["0.table.weight"]
    assert not vectors[0].any() and vectors[1:].all()
    assert trained.outcomes["words, parts"].evaluations["validation"].figures["accuracy"] > 0.9


def test_no_shard_holds_more_than_its_ranks_part(trained: Trained) -> None:
    whole = sum(value.numel() for name, value in weights_of(trained.folder / "whole").items() if name != "7.bias")
    shared, *shards = states_of(trained.folder / "parts")
    assert "model" not in shared
    kept = [sum(value.numel() for name, value in each["model"].items() if name != "7.bias") for each in shards]
    assert sum(kept) == whole and max(kept) < 0.4 * whole


def test_an_interruption_in_the_middle_of_a_round_changes_no_bit(trained: Trained) -> None:
    assert states_of(trained.folder / "begun")[0]["strategy"]["in_round"]
    assert_equal(states_of(trained.folder / "interrupted"), states_of(trained.folder / "parts"))
    for ours, theirs in zip(trained.outcomes["interrupted"].history, trained.outcomes["parts"].history, strict=True):
        assert ours | UNEQUAL == theirs | UNEQUAL


def answers(job: Job, rank: Rank) -> torch.Tensor:
    """What the network that a run goes on with answers on this rank's rows: of rank 1, none."""
    with job.backend.connect() as communicator:
        model = (build_hollow_model if job.settings.in_parts else build_model)(job.dataset, job.settings)
        groups = Groups(communicator, communicator)
        replica = Replica(model, job.settings, Classification(4), groups, torch.device("cpu"))
        begin(job, replica, Reporter(rank, replica.task))
        with replica.strategy.consensus() as network, torch.no_grad():
            return network.eval()(ROWS if rank.rank == 0 else ROWS[:0])


ROWS = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
CHANGES = {
    "fewer ranks": ({"sharded": True}, 2),
    "more ranks": ({"sharded": True}, 4),
    "another period": ({"strategy": {"kind": "ist", "period": 5, "sharded": True}}, 3),
    "the whole network": ({"sharded": False}, 3),
    "another strategy": ({"strategy": "allreduce"}, 2),
}


@pytest.mark.parametrize("name", CHANGES)
def test_whoever_goes_on_from_parts_begins_with_the_network_that_they_make_up(trained: Trained, name: str) -> None:
    changes, size = CHANGES[name]
    job = trained.job(name, **changes)
    found = run_local(partial(answers, job), size, backend=trained.backend, on_message=lambda rank, message: None)
    network = build_model(trained.clouds, job.settings).eval()
    network.load_state_dict(weights_of(trained.folder / "begun"))
    torch.testing.assert_close(found[0], network(ROWS).detach())
    assert found[1].shape == (0, 4)


def test_a_run_with_the_whole_network_goes_on_in_parts(trained: Trained) -> None:
    folder = str(trained.folder / "whole")
    job = Job(trained.clouds, settings_for(sharded=True), folder, trained.backend, SIZE, checkpoint=latest(folder))
    found = run_local(partial(answers, job), SIZE, backend=trained.backend, on_message=lambda rank, message: None)
    network = build_model(trained.clouds, job.settings).eval()
    network.load_state_dict(weights_of(trained.folder / "whole"))
    torch.testing.assert_close(found[0], network(ROWS).detach())


def test_with_fewer_ranks_every_row_of_the_epoch_counts_once(trained: Trained) -> None:
    outcome = run_local(partial(train_rank, trained.job("two ranks")), 2, backend=trained.backend)[0]
    correct = [each["train_accuracy"] * 106 for each in outcome.history]
    assert len(correct) == EPOCHS and correct == pytest.approx([round(rows) for rows in correct], abs=1e-6)


def test_the_registered_network_answers_as_the_best_parts_do(trained: Trained, tmp_path: Path) -> None:
    outcome, settings = trained.outcomes["parts"], settings_for(sharded=True)
    write_model_folder(tmp_path, trained.clouds, settings, outcome.checkpoint)
    network = build_model(trained.clouds, settings).eval()
    network.load_state_dict(best_weights(outcome.checkpoint))
    torch.testing.assert_close(load_network(tmp_path / NETWORK_FILE)(ROWS), network(ROWS).detach())


def test_a_registered_network_of_words_is_as_wide_as_the_one_that_lies_in_parts(
    trained: Trained, texts: Dataset, tmp_path: Path
) -> None:
    checkpoint, settings = trained.outcomes["words, parts"].checkpoint, settings_for(sharded=True, **OF_WORDS)
    write_model_folder(tmp_path, texts, settings, checkpoint)
    network = build_model(texts, settings).eval()
    network.load_state_dict(best_weights(checkpoint))
    words = torch.tensor([[3.0, 11, 39, 0, 0, 0], [40, 1, 2, 4, 5, 6], [0, 0, 0, 0, 0, 0]])
    torch.testing.assert_close(load_network(tmp_path / NETWORK_FILE)(words), network(words).detach())


def test_the_shards_of_the_best_epoch_are_kept_as_long_as_it_is_the_best(trained: Trained, tmp_path: Path) -> None:
    """Steps that climb make every epoch worse than the first one, whose checkpoint is not among the last."""
    settings = settings_for(sharded=True, optimizer_options={"maximize": True}, best_by="loss", keep_last=1)
    job = Job(trained.clouds, settings, str(tmp_path / "run"), trained.backend, SIZE)
    outcome = run_local(partial(train_rank, job), SIZE, backend=trained.backend)[0]
    assert outcome.best_epoch == 0
    assert len(list((tmp_path / "run").glob("step-*"))) == 2
    assert best_weights(outcome.checkpoint).keys() == weights_of(trained.folder / "parts").keys()
