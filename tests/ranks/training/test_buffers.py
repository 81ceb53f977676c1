"""What a run has evaluated, what it continues from and what it registers is one network, with all of its buffers."""

from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from sparkdl.cluster import Rank, run_local
from sparkdl.collectives import Backend
from sparkdl.data import Dataset, Loader
from sparkdl.models import NETWORK_FILE, load_network, load_weights
from sparkdl.settings import Train
from sparkdl.training.checks.tried_model import tried_model
from sparkdl.training.job import Job, TrainingResult
from sparkdl.training.model_folder import write_model_folder

from .interruptions import continued, interrupt

KINDS = ["allreduce", "local_sgd", "easgd", "diloco", "hogwild", "ist"]


class Centred(nn.Module):
    """Takes a running mean from its inputs, which is no part of its ``state_dict``."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(features), persistent=False)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean += 0.3 * (3 + rows.detach().mean(dim=0) - self.mean)
        return 4 * (rows - self.mean)


def network(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return nn.Sequential(Centred(*input_shape), nn.Linear(*input_shape, 16), nn.ReLU(), nn.Linear(16, num_classes))


def settings_for(kind: str) -> Train:
    strategy = {"kind": kind}
    return Train(model=network, optimizer="sgd", epochs=2, batch_size=8, checkpoint_steps=2, strategy=strategy)


def train_with_all(clouds: Dataset, folder: str, backend: Backend, rank: Rank) -> dict[str, TrainingResult | None]:
    """By strategy: one run that is interrupted, and continued."""
    results = {}
    for kind in KINDS:
        job = Job(clouds, settings_for(kind), f"{folder}/{kind}", backend, reference=2)
        interrupt(job, rank, at=9)
        results[kind] = continued(job, rank)
    return results


def test_the_registered_network_answers_as_the_evaluated_one(backend: Backend, clouds: Dataset, tmp_path: Path) -> None:
    found = run_local(partial(train_with_all, clouds, str(tmp_path), backend), 2, backend=backend)[0]
    (batch,) = Loader(clouds, "validation", batch_size=30, rank=0, size=1, seed=0, shuffle=False).epoch(0)
    for kind in KINDS:
        model, settings, result = tmp_path / f"{kind}-model", settings_for(kind), found[kind]
        model.mkdir()
        write_model_folder(model, clouds, settings, result.checkpoint, traced=tried_model(clouds, settings)[1])
        outputs = load_network(model / NETWORK_FILE)(batch.inputs)
        loss = nn.functional.cross_entropy(outputs, batch.labels)
        assert float(loss) == pytest.approx(result.evaluations["validation"].figures["loss"], rel=1e-4)
        assert load_weights(model / NETWORK_FILE)["0.mean"].mean() > 1
