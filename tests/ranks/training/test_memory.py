"""A network that no rank has room for, under a limit that the system enforces."""

from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from benchmarks.memory import OUT_OF_MEMORY, limit_memory
from sparkdl.cluster import Rank, returned_memory, run_local
from sparkdl.collectives import TorchBackend
from sparkdl.data import Dataset
from sparkdl.errors import RankError
from sparkdl.models import NETWORK_FILE
from sparkdl.settings import RankLayout, Train
from sparkdl.training.checks.shared_replicas import tried_plan
from sparkdl.training.checks.some_rows import some_rows
from sparkdl.training.checks.tried_model import check_model
from sparkdl.training.job import Job, TrainingResult
from sparkdl.training.loop import train_rank
from sparkdl.training.model_folder import write_model_folder
from sparkdl.training.network_to_train import build_model


class Network(NamedTuple):
    """What is trained."""

    rows: str
    """The fixture that it reads."""
    recipe: dict[str, object]
    weights: int
    """Bytes."""
    limit: int
    """Bytes: so much less than the weights and what the optimizer keeps. Beside it a rank has what Python and its
    libraries take."""
    in_parts: dict[str, object]
    """The strategy by which it is trained."""
    layout: RankLayout | None = None
    """How the four ranks share one replica, if they do."""
    accuracy: float = 0.5
    """What two epochs are enough for."""

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
    in_parts={"kind": "ist", "sharded": True},
)
"""105 MB between two hidden layers, and a limit of two fifths. Adam keeps three numbers of each weight here."""
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
    in_parts={"kind": "ist", "sharded": True},
)
"""246 MB in an embedding, whose gradient is sparse, and the same limit. Adagrad keeps one number of each weight."""
LAYERS, NEURONS = 16, 1536
DEEP = Network(
    "clouds",
    {"model_options": {"hidden": [NEURONS] * (LAYERS + 1)}, "optimizer": "adam", "learning_rate": 1e-3},
    weights=4 * LAYERS * NEURONS**2,
    limit=5 * 4 * LAYERS * NEURONS**2 // 2,
    in_parts={"kind": "allreduce", "shard": "all"},
    accuracy=0.0,
)
"""151 MB in sixteen layers, and a limit of five sixths of that and Adam's two numbers; there are gradients, too. A rank
takes 1.7 to 2 times the weights, and four times with the whole network."""


CUT = DEEP._replace(in_parts={"kind": "allreduce"}, layout=RankLayout(tensor=4))
STAGED = CUT._replace(layout=RankLayout(pipeline=4))
"""The same, a replica that four ranks share: a part of each layer, and some layers each."""


def train_limited(job: Job, limit: int, rank: Rank) -> TrainingResult | None:
    limit_memory(limit)
    return train_rank(job, rank)


def register_limited(job: Job, folder: str, checkpoint: str, limit: int, rank: Rank) -> None:
    check_model(job.dataset, job.settings)  # as a driver does before; it loads what traces networks
    limit_memory(limit)
    with returned_memory():  # a driver keeps no memory that is freed; these ranks do
        write_model_folder(folder, job.dataset, job.settings, checkpoint, in_parts=True)


@pytest.mark.parametrize(
    "network", [DENSE, OF_WORDS, DEEP, CUT, STAGED], ids=["dense", "of words", "deep", "cut", "staged"]
)
def test_four_ranks_train_evaluate_save_and_register_what_none_has_room_for(
    network: Network, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    settings = network.settings(network.in_parts)
    dataset = request.getfixturevalue(network.rows)
    layout, model = network.layout, build_model(dataset, settings)
    plan = tried_plan(model, some_rows(dataset), layout, batch_size=settings.batch_size) if layout else None
    replicas = 1 if plan else 4
    job = Job(dataset, settings, str(tmp_path / "parts"), TorchBackend(), replicas, plan=plan)
    outcome = run_local(partial(train_limited, job, network.limit), 4, backend=TorchBackend())[0]
    assert outcome.history[1]["train_loss"] < outcome.history[0]["train_loss"]
    assert outcome.evaluations["validation"].figures["accuracy"] > network.accuracy
    register = partial(register_limited, job, str(tmp_path), outcome.checkpoint, network.limit)
    run_local(register, 1, backend=TorchBackend())
    assert (tmp_path / NETWORK_FILE).stat().st_size > network.weights


@pytest.mark.parametrize(
    ("network", "kind"),
    [(DENSE, "allreduce"), (DENSE, "ist"), (DEEP, "allreduce")],
    ids=["allreduce", "ist", "deep"],
)
def test_with_the_whole_network_on_each_rank_the_same_limit_is_too_little(
    clouds: Dataset, tmp_path: Path, network: Network, kind: str
) -> None:
    job = Job(clouds, network.settings({"kind": kind}), str(tmp_path / "whole"), TorchBackend(), 2)
    with pytest.raises(RankError, match=OUT_OF_MEMORY):
        run_local(partial(train_limited, job, network.limit), 2, backend=TorchBackend())
