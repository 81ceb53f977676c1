"""Noise by which a large batch becomes as uncertain as a small one: its covariance, by many draws."""

from collections.abc import Mapping

import pytest
import torch
from torch import nn
from torch.nn import functional

from sparkdl.cluster import limited_threads
from sparkdl.data import Batch
from sparkdl.errors import ModelError
from sparkdl.settings import Train
from sparkdl.settings.gradient_noise import FisherDiagonalOptions, FisherTraceOptions
from sparkdl.training.recipes.fisher_noise import CHUNK_BYTES, FisherNoise, check_rows_apart, sums_of_squares
from sparkdl.training.recipes.losses import build_loss
from sparkdl.training.tasks import Classification

DRAWS = 300
ROWS, SMALL = 8, 2
TRAINED = {"0.weight": (2, 1, 3, 3), "3.weight": (3, 32), "3.bias": (3,)}
SETTINGS = Train(label_smoothing=0.1)
LOSS = build_loss(SETTINGS, Classification(3))


def images(rows: int, *, weighted: bool = False) -> Batch:
    generator = torch.Generator().manual_seed(1)
    pixels = torch.randn(rows, 1, 6, 6, generator=generator)
    labels = torch.arange(rows) % 3
    return Batch(pixels, labels, rows, torch.rand(rows, generator=generator) if weighted else None)


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(32, 3))
    layers[0].bias.requires_grad_(False)
    return layers


def gradients_by_row(model: nn.Module, batch: Batch) -> torch.Tensor:
    """One row after the other, of shape (rows, trained parameters)."""
    found = []
    for row in range(len(batch.labels)):
        one = slice(row, row + 1)
        outputs = functional.cross_entropy(
            model(batch.inputs[one]), batch.labels[one], label_smoothing=0.1, reduction="none"
        )
        loss = outputs.sum() if batch.weights is None else (outputs * batch.weights[one]).sum()
        trained = [value for value in model.parameters() if value.requires_grad]
        found.append(torch.cat([each.flatten() for each in torch.autograd.grad(loss, trained)]))
    return torch.stack(found)


@pytest.mark.parametrize("weighted", [False, True])
def test_squares_of_rows_are_those_of_one_row_after_the_other(weighted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = network(), images(7, weighted=weighted)
    parameters = sum(value.nbytes for value in model.parameters())
    assert parameters < CHUNK_BYTES
    three_rows = 3 * parameters  # then three more, and the last one
    monkeypatch.setattr("sparkdl.training.recipes.fisher_noise.CHUNK_BYTES", three_rows)
    squares = sums_of_squares(model, batch, SETTINGS, LOSS)
    assert {name: value.shape for name, value in squares.items()} == TRAINED
    found = torch.cat([square.flatten() for square in squares.values()])
    torch.testing.assert_close(found, gradients_by_row(model, batch).square().sum(dim=0))


@pytest.mark.parametrize("kind", ["fisher_diagonal", "fisher_trace"])
@pytest.mark.parametrize("shares", [[ROWS], [5, 3, 0]], ids=["one rank", "three ranks"])
def test_the_mean_over_ranks_has_the_variances_that_a_small_batch_has_and_the_large_one_lacks(
    kind: str, shares: list[int]
) -> None:
    """Variances of independent noise add up, and their mean's is their sum over the square of their number."""
    noise, first, sums = noise_of(kind, network()), 0, torch.zeros(())
    for rows in shares:
        part = images(ROWS)
        part = Batch(part.inputs[first : first + rows], part.labels[first : first + rows], ROWS)
        found = noise.deviations([part], ranks=len(shares))
        assert bool(found) == bool(rows)
        sums = sums + flat(found).square() if found else sums
        first += rows
    torch.testing.assert_close(sums / len(shares) ** 2, variances(kind))


@pytest.mark.parametrize("kind", ["fisher_diagonal", "fisher_trace"])
def test_noise_has_this_covariance_and_no_mean(kind: str) -> None:
    model, scaler = network(), torch.amp.GradScaler("cpu", enabled=False)
    noise = noise_of(kind, model)
    draws = []
    with limited_threads(1):  # two would wait for each other longer than they compute
        for _ in range(DRAWS):
            noise.lay([images(ROWS)], ranks=1, scaler=scaler)
            draws.append(flat({name: value.grad for name, value in model.named_parameters() if value.grad is not None}))
    scaled = torch.stack(draws) / variances(kind).sqrt()
    covariance = scaled.T @ scaled / DRAWS - torch.eye(scaled.shape[1])
    error = DRAWS**-0.5  # of each entry, and 1.4 times that on the diagonal
    assert float(covariance.abs().max()) < 6 * error
    assert float(covariance.square().mean().sqrt()) == pytest.approx(error, rel=0.1)
    assert float(scaled.mean(dim=0).abs().max()) < 5 * error


def variances(kind: str) -> torch.Tensor:
    """What the paper asks for, by parameter."""
    fisher = gradients_by_row(network(), images(ROWS)).square().mean(dim=0)
    return (1 / SMALL - 1 / ROWS) * (fisher if kind == "fisher_diagonal" else fisher.mean().expand_as(fisher))


def noise_of(kind: str, model: nn.Module) -> FisherNoise:
    options = {"fisher_diagonal": FisherDiagonalOptions, "fisher_trace": FisherTraceOptions}[kind]
    return FisherNoise(options(small_batch=SMALL), model, SETTINGS, LOSS)


def flat(tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """One vector; a scalar stands for all of a parameter's."""
    return torch.cat([tensors[name].expand(shape).flatten() for name, shape in TRAINED.items()])


def test_a_step_of_no_more_rows_than_the_small_batch_gets_no_noise() -> None:
    model, four = network(), images(4)
    noise = FisherNoise(FisherTraceOptions(), model, Train(batch_size=4), LOSS)
    assert noise.deviations([four], ranks=2) == {}
    assert noise.deviations([four, four], ranks=1).keys() == TRAINED.keys()  # accumulated


def test_rows_that_are_normalised_by_each_other_have_no_gradients_of_their_own() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 3), nn.BatchNorm1d(3))
    with pytest.raises(ModelError, match=r"the layer '2' of the model 'net' normalises rows by each other"):
        check_rows_apart(model, images(2), Train(model="net"), LOSS)


def test_a_loss_that_looks_at_numbers_is_refused_with_what_it_said() -> None:
    def loss(outputs: torch.Tensor, labels: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        return outputs.sum() * labels.item()

    with pytest.raises(ModelError, match=r"the model 'net' with its loss does not give it; .*item\(\)"):
        check_rows_apart(network(), images(2), Train(model="net"), loss)
