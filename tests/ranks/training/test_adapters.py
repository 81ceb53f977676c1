"""Adapters are all that ranks train, exchange and save; the registered network has them in its own weights."""

from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sparkdl.cluster import Rank, run_local
from sparkdl.collectives import Backend
from sparkdl.data import Dataset, Loader
from sparkdl.models import NETWORK_FILE, load_network, load_weights
from sparkdl.settings import Train
from sparkdl.training.checks.tried_model import tried_model
from sparkdl.training.groups import Groups
from sparkdl.training.job import Job, TrainingResult
from sparkdl.training.loop import train_rank
from sparkdl.training.model_folder import write_model_folder
from sparkdl.training.network_to_train import build_model
from sparkdl.training.replica import Replica
from sparkdl.training.task_to_train import task_to_train

from .interruptions import continued, interrupt

KINDS = ["allreduce", "local_sgd", "easgd", "diloco", "hogwild"]
LORA = {"kind": "lora", "rank": 8, "targets": ["first", "second"], "whole": ["head"]}
WIDTH = 256


class Deep(nn.Module):
    """Has more weights than its adapters."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(*input_shape, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, num_classes)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.head(self.second(self.first(rows).relu()).relu())
        return answer


class HalfFrozen(Deep):
    """The same with layers that its user has frozen."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__(input_shape, num_classes)
        self.second.requires_grad_(False)


def settings_for(kind: str, **changes: Any) -> Train:
    recipe = {"model": Deep, "optimizer": "sgd", "epochs": 2, "batch_size": 8, "checkpoint_steps": 2, "adapters": LORA}
    return Train.model_validate(recipe | {"strategy": {"kind": kind}} | changes)


def train_with_all(clouds: Dataset, folder: str, backend: Backend, rank: Rank) -> dict[str, TrainingResult | None]:
    """By strategy: one run that is interrupted, and continued."""
    results = {}
    for kind in KINDS:
        job = Job(clouds, settings_for(kind), f"{folder}/{kind}", backend, reference=2)
        interrupt(job, rank, at=9)
        results[kind] = continued(job, rank)
    return results


def test_the_registered_network_is_the_one_that_was_built_with_what_adapters_learned(
    backend: Backend, clouds: Dataset, tmp_path: Path
) -> None:
    found = run_local(partial(train_with_all, clouds, str(tmp_path), backend), 2, backend=backend)[0]
    (batch,) = Loader(clouds, "validation", batch_size=30, rank=0, size=1, seed=0, shuffle=False).epoch(0)
    plain = build_model(clouds, settings_for("allreduce", adapters=None)).state_dict()
    for kind in KINDS:
        model, settings, result = tmp_path / f"{kind}-model", settings_for(kind), found[kind]
        assert result is not None
        model.mkdir()
        write_model_folder(model, clouds, settings, result.checkpoint, traced=tried_model(clouds, settings)[1])
        loss = nn.functional.cross_entropy(load_network(model / NETWORK_FILE)(batch.inputs), batch.labels)
        assert float(loss) == pytest.approx(result.evaluations["validation"].figures["loss"], rel=1e-4)
        weights = load_weights(model / NETWORK_FILE)
        assert weights.keys() == plain.keys()
        assert torch.equal(weights["first.bias"], plain["first.bias"])
        assert torch.linalg.matrix_rank(weights["second.weight"] - plain["second.weight"], rtol=1e-4) <= 8
        assert not torch.equal(weights["head.weight"], plain["head.weight"])


def one_step(clouds: Dataset, folder: str, backend: Backend, rank: Rank) -> dict[str, tuple[int, int, int, int]]:
    """By network: bytes of what is trained, of what a rank sends in a step, and of moments; and what is frozen."""
    found = {}
    networks: dict[str, dict[str, Any]] = {"adapters": {}, "frozen": {"model": HalfFrozen, "adapters": None}}
    strategies = [{"kind": "allreduce"}, *({"kind": kind, "period": 1} for kind in ("local_sgd", "diloco"))]
    for (network, changes), strategy in product(networks.items(), strategies):
        name = f"{network}, {strategy['kind']}"
        settings = settings_for("allreduce", optimizer="adam", **{"strategy": strategy, **changes})
        task = task_to_train(clouds.card, settings)
        with backend.connect() as world:
            model = build_model(clouds, settings)
            replica = Replica(model, settings, task, Groups(world=world, data=world), torch.device("cpu"))
            loader = Loader(clouds, "train", batch_size=8, rank=world.rank, size=world.size, seed=0)
            before = world.bytes_sent
            replica.step([next(iter(loader.epoch(0)))], rate=0.1)
            sent = world.bytes_sent - before
        trained = sum(each.nbytes for each in model.parameters() if each.requires_grad)
        frozen = sum(each.nbytes for each in model.parameters() if not each.requires_grad)
        moments = sum(
            value.nbytes for state in replica.optimizer.state.values() for value in state.values() if value.ndim
        )
        found[name] = trained, sent, moments, frozen
    return found


def test_what_is_frozen_costs_neither_bytes_nor_moments(backend: Backend, clouds: Dataset, tmp_path: Path) -> None:
    for found in run_local(partial(one_step, clouds, str(tmp_path), backend), 2, backend=backend):
        for trained, sent, moments, frozen in found.values():
            assert sent == pytest.approx(trained, rel=0.05)
            assert moments == 2 * trained
            assert frozen > trained


def test_a_checkpoint_has_the_size_of_adapters(backend: Backend, clouds: Dataset, tmp_path: Path) -> None:
    settings = settings_for("allreduce", epochs=1, checkpoint_steps=None)
    job = Job(clouds, settings, str(tmp_path), backend, reference=1)
    run_local(partial(train_rank, job), 1, backend=backend)
    model = build_model(clouds, settings)
    trained = sum(each.nbytes for each in model.parameters() if each.requires_grad)
    whole = sum(each.nbytes for each in model.parameters())
    (best,) = tmp_path.glob("best*")
    # Names, random states and the like take the same few kilobytes whatever the network.
    assert best.stat().st_size < 1.05 * trained + 16_000 < whole
