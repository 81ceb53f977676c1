"""A network that no rank has room for, under a limit that the system enforces."""

from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from benchmarks.memory import limit_memory
from sparkdl.cluster import Rank, returned_memory, run_local
from sparkdl.collectives import TorchBackend
from sparkdl.data import Dataset
from sparkdl.errors import RankError
from sparkdl.models import NETWORK_FILE
from sparkdl.settings import Train
from sparkdl.training.loop import Job, TrainingResult, train_rank
from sparkdl.training.model_folder import check_model, write_model_folder


class Network(NamedTuple):
    """What is trained, in which nearly all weights are in one tensor."""

    rows: str
    """The fixture that it reads."""
    recipe: dict[str, object]
    weights: int
    """Bytes."""
    limit: int
    """Bytes: two fifths of the weights and of what the optimizer keeps. Beside it a rank has what Python and its
    libraries take."""

    def settings(self, strategy: dict[str, object]) -> Train:
        return Train(**self.recipe, strategy=strategy, batch_size=32, epochs=2)


WIDTH, VOCABULARY, NUMBERS = 5120, 120_000, 512
DENSE = Network(
    "clouds",
    {
        "model_options": {"hidden": [WIDTH, WIDTH]},
        "optimizer": "adam",
        "optimizer_options": {"amsgrad": True},
        "learning_rate": 1e-4,
    },
    weights=4 * WIDTH**2,
    limit=2 * 4 * 4 * WIDTH**2 // 5,
)
"""105 MB between two hidden layers. Adam keeps three numbers of each weight here."""
OF_WORDS = Network(
    "texts",
    {
        "model": "bag_of_words",
        "model_options": {"vocabulary": VOCABULARY, "width": NUMBERS, "sparse": True},
        "optimizer": "torch.optim:Adagrad",
        "learning_rate": 0.05,
    },
    weights=4 * VOCABULARY * NUMBERS,
    limit=2 * 2 * 4 * VOCABULARY * NUMBERS // 5,
)
"""246 MB in an embedding, whose gradient is sparse. Adagrad keeps one number of each weight."""


def train_limited(job: Job, limit: int, rank: Rank) -> TrainingResult | None:
    limit_memory(limit)
    return train_rank(job, rank)


def register_limited(job: Job, folder: str, checkpoint: str, limit: int, rank: Rank) -> None:
    check_model(job.dataset, job.settings)  # as a driver does before; it loads what traces networks
    limit_memory(limit)
    with returned_memory():  # a driver keeps no memory that is freed; these ranks do
        write_model_folder(folder, job.dataset, job.settings, checkpoint)


@pytest.mark.parametrize("network", [DENSE, OF_WORDS], ids=["dense", "of words"])
def test_four_ranks_train_evaluate_save_and_register_what_none_has_room_for(
    network: Network, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    settings = network.settings({"kind": "ist", "sharded": True})
    job = Job(request.getfixturevalue(network.rows), settings, str(tmp_path / "parts"), TorchBackend(), 4)
    outcome = run_local(partial(train_limited, job, network.limit), 4, backend=TorchBackend())[0]
    assert outcome.history[1]["train_loss"] < outcome.history[0]["train_loss"]
    assert outcome.evaluations["validation"].figures["accuracy"] > 0.5
    register = partial(register_limited, job, str(tmp_path), outcome.checkpoint, network.limit)
    run_local(register, 1, backend=TorchBackend())
    assert (tmp_path / NETWORK_FILE).stat().st_size > network.weights


@pytest.mark.parametrize("strategy", [{"kind": "allreduce"}, {"kind": "ist"}], ids=lambda strategy: strategy["kind"])
def test_with_the_whole_network_on_each_rank_the_same_limit_is_too_little(
    clouds: Dataset, tmp_path: Path, strategy: dict[str, object]
) -> None:
    job = Job(clouds, DENSE.settings(strategy), str(tmp_path / "whole"), TorchBackend(), 2)
    with pytest.raises(RankError, match="allocate memory"):
        run_local(partial(train_limited, job, DENSE.limit), 2, backend=TorchBackend())
