"""Sandblaster over real servers and a real coordinator: what it finds, whoever computes what."""

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import nn
from torch.nn import functional

from sparkdl.data import Dataset, Loader
from sparkdl.training.asynchronous import portions
from sparkdl.training.checkpoints.checkpoint import load_weights
from sparkdl.training.job import TrainingResult
from sparkdl.training.network_to_train import build_model

from .conftest import Training, weights_of

DECAY = 0.01


def regression(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Multinomial regression: its loss with weight decay has one minimum."""
    return nn.Linear(*input_shape, num_classes)


class Shifted(nn.Linear):
    """Has a buffer, as networks for images have for their scale."""

    def __init__(self, *shape: int) -> None:
        super().__init__(*shape)
        self.register_buffer("shift", torch.ones(shape[0]))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return super().forward(rows + self.shift)


def shifted(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return Shifted(*input_shape, num_classes)


def losses(result: TrainingResult) -> list[float]:
    return [epoch["train_loss"] for epoch in result.history]


def test_it_ends_where_scipy_ends(train: Training) -> None:
    found = train("sandblaster", model=regression, weight_decay=DECAY, epochs=30, best_by="loss")
    (batch,) = Loader(train.dataset, "train", batch_size=1000).epoch(0)
    model = build_model(train.dataset, train.settings("sandblaster", model=regression)).double()

    def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
        nn.utils.vector_to_parameters(torch.from_numpy(weights), model.parameters())
        model.zero_grad()
        value = functional.cross_entropy(model(batch.inputs.double()), batch.labels)
        value = value + DECAY / 2 * model.weight.square().sum()
        value.backward()
        return value.item(), nn.utils.parameters_to_vector([each.grad for each in model.parameters()]).numpy()

    start = nn.utils.parameters_to_vector(model.parameters()).detach().numpy()
    expected = minimize(loss, start, jac=True, method="L-BFGS-B", options={"ftol": 1e-12, "gtol": 1e-8})
    assert losses(found)[-1] == pytest.approx(expected.fun, abs=1e-6)
    assert len(found.history) < 30  # it has noticed that there is nothing to be found any more


def test_the_losses_are_the_same_to_the_last_bit_whoever_computes_a_portion(
    clouds: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for workers, copies in ((1, 1), (3, 2)):
        monkeypatch.setattr(portions, "COPIES", copies)
        train = Training(clouds, tmp_path / str(workers))
        found.append(train({"kind": "sandblaster", "portions": 7}, workers=workers, servers=1, epochs=6))
    assert losses(found[0]) == losses(found[1])
    assert torch.equal(*map(weights_of, found))
    assert losses(found[0])[-1] < 0.8 * losses(found[0])[0]


def test_buffers_stay_what_they_are(train: Training) -> None:
    found = train("sandblaster", model=shifted, epochs=3)
    assert losses(found)[-1] < losses(found)[0]
    assert torch.equal(load_weights(found.checkpoint)["shift"], torch.ones(4))


def test_it_goes_on_from_a_checkpoint_with_what_servers_remember(clouds: Dataset, tmp_path: Path) -> None:
    whole = Training(clouds, tmp_path / "whole")("sandblaster", epochs=8)
    parts = Training(clouds, tmp_path / "parts")
    parts("sandblaster", epochs=4)
    assert losses(parts("sandblaster", epochs=8)) == losses(whole)
