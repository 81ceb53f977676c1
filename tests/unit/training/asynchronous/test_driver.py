"""The promises of an asynchronous run, with real servers and a real coordinator."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from sparkdl.data import Loader
from sparkdl.settings import Resources
from sparkdl.training.asynchronous.epochs import portions_of
from sparkdl.training.checkpoints.checkpoint import load_manifest
from sparkdl.training.checkpoints.checkpoint_folder import latest
from sparkdl.training.network_to_train import build_model
from sparkdl.training.recipes.recipe import rate_at

from .conftest import Threads, Training, slow_network, weights_of

ROWS = 106
RATE = 0.1


def portions(train: Training, epoch: int, **settings: Any) -> list[list[Any]]:
    """The batches of each portion of an epoch."""
    chosen = train.settings("downpour", **settings)
    _, count = portions_of(chosen, ROWS)
    loaders = [
        Loader(train.dataset, "train", batch_size=chosen.batch_size, rank=number, size=count) for number in range(count)
    ]
    return [[batch for batch in loader.epoch(epoch) if len(batch.labels)] for loader in loaders]


def gradients_of(model: nn.Module, batch: Any) -> list[torch.Tensor]:
    loss = functional.cross_entropy(model(batch.inputs), batch.labels)
    return list(torch.autograd.grad(loss, list(model.parameters())))


def simulated(train: Training, workers: int, step: Callable[[nn.Parameter, torch.Tensor], None]) -> torch.Tensor:
    """Lockstep in plain arithmetic: in each round so many workers take the next portions from the same weights."""
    settings = train.settings("downpour", epochs=2)
    model = build_model(train.dataset, settings)
    for epoch in range(2):
        batches = [batch for portion in portions(train, epoch) for batch in portion]
        for start in range(0, len(batches), workers):
            found = [gradients_of(model, batch) for batch in batches[start : start + workers]]
            with torch.no_grad():
                for gradients in found:
                    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                        step(parameter, gradient)
    return nn.utils.parameters_to_vector(model.parameters())


@pytest.mark.parametrize("workers", [1, 2])
def test_without_staleness_it_equals_synchronous_training(train: Training, workers: int) -> None:
    found = train({"kind": "downpour", "rule": "sgd", "staleness": 0}, workers=workers, best_by="loss")
    expected = simulated(train, workers, lambda weights, gradient: weights.sub_(gradient, alpha=RATE))
    assert torch.allclose(weights_of(found), expected, atol=1e-12)


def test_one_worker_with_adagrad_equals_that_of_pytorch(train: Training) -> None:
    squares: dict[nn.Parameter, torch.Tensor] = {}

    def step(weights: nn.Parameter, gradient: torch.Tensor) -> None:
        squares[weights] = squares.get(weights, torch.zeros_like(weights)) + gradient**2
        weights.addcdiv_(gradient, squares[weights].sqrt() + 1e-10, value=-RATE)

    found = train({"kind": "downpour", "staleness": 0}, workers=1)
    assert torch.allclose(weights_of(found), simulated(train, 1, step), atol=1e-9)


def test_servers_follow_the_schedule_of_the_run(train: Training) -> None:
    recipe = {"schedule": "cosine", "warmup_epochs": 0.5}
    settings = train.settings("downpour", **recipe)
    steps = len([batch for portion in portions(train, 0) for batch in portion])
    tensors = len(list(build_model(train.dataset, settings).parameters()))
    calls = 0

    def step(weights: nn.Parameter, gradient: torch.Tensor) -> None:
        nonlocal calls
        weights.sub_(gradient, alpha=rate_at(settings, calls // tensors, steps_per_epoch=steps, size=1))
        calls += 1

    found = train({"kind": "downpour", "rule": "sgd", "staleness": 0}, workers=1, best_by="loss", **recipe)
    assert torch.allclose(weights_of(found), simulated(train, 1, step), atol=1e-12)


@pytest.mark.parametrize(
    "strategy",
    [
        {"kind": "downpour"},
        {"kind": "downpour", "rule": "sgd", "period": 3, "fetch_period": 2, "warm_start": 4},
        {"kind": "downpour", "rule": "dynsgd", "staleness": 2},
        {"kind": "async_easgd", "period": 3},
        {"kind": "decoupled_diloco", "period": 2, "fragments": 3, "grace": 0.01},
    ],
    ids=str,
)
def test_it_learns_and_uses_every_row_once_an_epoch(train: Training, strategy: dict[str, Any]) -> None:
    options = {"optimizer": "sgd"} if strategy["kind"] in ("async_easgd", "decoupled_diloco") else {}
    found = train(strategy, workers=3, epochs=6, **options)
    assert [epoch["rows"] for epoch in found.history] == [ROWS] * 6
    assert found.history[-1]["train_loss"] < 0.7 * found.history[0]["train_loss"]
    assert found.evaluations["validation"].rows == 30
    assert found.evaluations["validation"].figures["accuracy"] == found.history[found.best_epoch]["validation_accuracy"]
    assert found.history[-1]["pushes_per_second"] > 0


class LostAtFirst(Threads):
    """All workers end at once before they have done anything, as on executors that are lost."""

    def __init__(self) -> None:
        self.lost: set[str] = set()

    def submit(
        self, work: Callable[[], list[str]], *, description: str, resources: Resources | None = None
    ) -> Future[list[str]]:
        if "worker" not in description or description in self.lost:
            return super().submit(work, description=description, resources=resources)
        self.lost.add(description)
        future: Future[list[str]] = Future()
        future.set_exception(RuntimeError("the executor was lost"))
        return future


def test_more_workers_may_be_lost_at_once_than_there_are_restarts(train: Training) -> None:
    train.tasks = LostAtFirst()
    found = train("downpour", workers=5)
    assert len(train.tasks.lost) == 5
    assert [epoch["rows"] for epoch in found.history] == [ROWS] * 2


def test_a_run_goes_on_from_its_checkpoint(train: Training) -> None:
    strategy = {"kind": "downpour", "staleness": 0}
    whole = train(strategy, workers=1, epochs=3, best_by="loss")
    halves = Training(train.dataset, train.folder / "halves")
    halves.folder.mkdir()
    halves(strategy, workers=1, epochs=1, best_by="loss")
    continued = halves(strategy, workers=1, epochs=3, best_by="loss")
    assert len(continued.history) == 3
    assert torch.allclose(weights_of(whole), weights_of(continued), atol=1e-12)


def test_a_checkpoint_in_the_middle_of_an_epoch_loses_no_row(train: Training) -> None:
    strategy = {"kind": "downpour", "staleness": 0, "rule": "sgd"}

    class StoppedError(Exception):
        pass

    def stop(rank: int, message: dict[str, Any]) -> None:
        manifest = latest(str(train.folder))
        if manifest and load_manifest(manifest).epoch == 0:
            raise StoppedError

    train.on_message = stop
    slow = {"epochs": 1, "batch_size": 1, "checkpoint_steps": 5}
    with pytest.raises(StoppedError):
        train(strategy, workers=1, servers=1, model=slow_network, **slow)  # several write at moments of their own
    assert 5 <= load_manifest(str(latest(str(train.folder)))).step < ROWS
    train.on_message = lambda rank, message: None
    found = train(strategy, workers=1, servers=1, model=slow_network, **slow)
    assert found.history[0]["rows"] == ROWS
    assert torch.allclose(weights_of(found), simulated_epoch(train), atol=1e-12)


def simulated_epoch(train: Training) -> torch.Tensor:
    model = build_model(train.dataset, train.settings("downpour"))
    for batch in (batch for portion in portions(train, 0, batch_size=1) for batch in portion):
        for parameter, gradient in zip(model.parameters(), gradients_of(model, batch), strict=True):
            parameter.detach().sub_(gradient, alpha=RATE)
    return nn.utils.parameters_to_vector(model.parameters())
