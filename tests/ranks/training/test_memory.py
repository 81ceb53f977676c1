"""A network that no rank has room for, under a limit that the system enforces."""

import re
import resource
import threading
from functools import partial
from pathlib import Path

import pytest

from sparkdl.cluster import Rank, run_local
from sparkdl.collectives import TorchBackend
from sparkdl.data import Dataset
from sparkdl.errors import RankError
from sparkdl.models import NETWORK_FILE
from sparkdl.settings import Train
from sparkdl.training.loop import Job, TrainingResult, train_rank
from sparkdl.training.model_folder import check_model, write_model_folder

WIDTH = 5120
"""Of two hidden layers, between which nearly all weights are."""
WEIGHTS = 4 * WIDTH**2
"""Bytes: 105 MB."""
LIMIT = 4 * WEIGHTS // 3
"""A third of the weights and of what Adam keeps, which is three times as much here (``amsgrad``). Beside it a rank has
what Python and its libraries take."""


def settings_for(strategy: dict[str, object]) -> Train:
    options = {"hidden": [WIDTH, WIDTH]}
    return Train(
        model_options=options, strategy=strategy, optimizer="adam", learning_rate=1e-4, batch_size=32, epochs=2
    )


def limit_memory() -> None:
    """Let this process have so much more memory than it has now: what is beyond, the system refuses."""
    threading.stack_size(1 << 20)  # a thread's stack counts as a whole, and 8 MB is usual
    found = re.search(r"VmData:\s+(\d+) kB", Path("/proc/self/status").read_text())
    most = 1024 * int(found[1]) + LIMIT
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def train_limited(job: Job, rank: Rank) -> TrainingResult | None:
    limit_memory()
    return train_rank(job, rank)


def register_limited(dataset: Dataset, settings: Train, folder: str, checkpoint: str, rank: Rank) -> None:
    check_model(dataset, settings)  # as a driver does before; it loads what traces networks
    limit_memory()
    write_model_folder(folder, dataset, settings, checkpoint)


def test_four_ranks_train_evaluate_save_and_register_what_none_has_room_for(clouds: Dataset, tmp_path: Path) -> None:
    settings = settings_for({"kind": "ist", "sharded": True})
    job = Job(clouds, settings, str(tmp_path / "parts"), TorchBackend(), 4)
    outcome = run_local(partial(train_limited, job), 4, backend=TorchBackend())[0]
    assert outcome.history[1]["train_loss"] < outcome.history[0]["train_loss"]
    assert outcome.evaluations["validation"].figures["accuracy"] > 0.5
    register = partial(register_limited, clouds, settings, str(tmp_path), outcome.checkpoint)
    run_local(register, 1, backend=TorchBackend())
    assert (tmp_path / NETWORK_FILE).stat().st_size > WEIGHTS


@pytest.mark.parametrize("strategy", [{"kind": "allreduce"}, {"kind": "ist"}], ids=lambda strategy: strategy["kind"])
def test_with_the_whole_network_on_each_rank_the_same_limit_is_too_little(
    clouds: Dataset, tmp_path: Path, strategy: dict[str, object]
) -> None:
    job = Job(clouds, settings_for(strategy), str(tmp_path / "whole"), TorchBackend(), 2)
    with pytest.raises(RankError, match="allocate memory"):
        run_local(partial(train_limited, job), 2, backend=TorchBackend())
