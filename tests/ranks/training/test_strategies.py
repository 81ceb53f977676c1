"""The same promises for every strategy, with both backends. A new strategy joins by an entry in ``STRATEGIES``.

Ranks are real, as processes on this machine: one launch trains with all strategies, one after another.
"""

import copy
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from math import ceil
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import update_bn

from sparkdl.cluster import Rank, run_local
from sparkdl.collectives import Backend, TorchBackend
from sparkdl.data import Dataset, Loader
from sparkdl.errors import RankError
from sparkdl.settings import Train
from sparkdl.training.checkpoints.checkpoint import load_manifest
from sparkdl.training.checkpoints.checkpoint_folder import latest
from sparkdl.training.groups import Groups
from sparkdl.training.job import Job
from sparkdl.training.loop import begin, train_rank
from sparkdl.training.network_to_train import build_model
from sparkdl.training.recipes.recipe import build_optimizer
from sparkdl.training.replica import Replica
from sparkdl.training.reports.reporter import Reporter
from sparkdl.training.strategies.rounds import STATISTICS_BATCHES
from sparkdl.training.tasks import Classification

from .interruptions import assert_equal, continued, interrupt, kill_at_mean, states_of, weights_of
from .simulated_averaging import MEANS
from .simulated_parts import DealtBlocks, DealtNeurons

STRATEGIES = {
    "allreduce": {"kind": "allreduce"},
    "allreduce, topk": {
        "kind": "allreduce",
        "compression": {"kind": "topk", "ratio": 0.1, "momentum": 0.8, "warmup_epochs": 2},
    },
    "allreduce, powersgd": {"kind": "allreduce", "compression": {"kind": "powersgd", "rank": 1}},
    "allreduce, qsgd": {"kind": "allreduce", "compression": {"kind": "qsgd", "bits": 4}},
    "local_sgd": {"kind": "local_sgd", "period": 4},
    "local_sgd, momentum averaged": {"kind": "local_sgd", "period": 4, "momentum": "averaged"},
    "post_local_sgd": {"kind": "post_local_sgd", "after_epochs": 1, "period": 4},
    "sparknet": {"kind": "sparknet", "period": 6},
    "diloco": {"kind": "diloco", "period": 5},
    "diloco, streaming": {"kind": "diloco", "period": 6, "fragments": 3, "delay": 2, "mixing": 0.5},
    "diloco, powersgd": {"kind": "diloco", "period": 5, "compression": {"kind": "powersgd", "rank": 1}},
    "easgd": {"kind": "easgd", "period": 3},
    "deepspark": {"kind": "deepspark", "period": 4},
    "hogwild": {"kind": "hogwild", "period": 4},
    "hogwild, a host each": {"kind": "hogwild", "period": 4},
    "ist": {"kind": "ist", "period": 4},
    "ist, all-reduce first and last": {"kind": "ist", "period": 4, "allreduce_first": 1, "allreduce_last": 1},
    "ist, convolutions": {"kind": "ist", "period": 4},
    "resist": {"kind": "resist", "period": 4},
}
RACING = ["hogwild"]
"""Strategies whose ranks write to the same weights without locks: no two runs of several ranks end with the same."""
EXACT = [name for name in STRATEGIES if name not in RACING]
SIZE = 3
ROWS = 106  # of the dataset: not the same number on each rank, and a short batch at the end of an epoch
EPOCHS = 3
SPREAD = 0.02  # of validation losses, at least: four runs may end close to each other by chance
RATES = {"ist": 0.15, "resist": 0.05, "hogwild": 0.15}
"""Larger where momentum begins anew with each round, or where there is none."""


class Double(nn.Module):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.double()


def network(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """In float64, so that a difference is one of methods and not of rounding."""
    return nn.Sequential(Double(), nn.Linear(*input_shape, 16), nn.Tanh(), nn.Linear(16, num_classes)).double()


def convolutional_network(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """A convolution along the features and a hidden layer, both with batch normalisation."""
    (length,) = input_shape
    channels = [nn.Unflatten(1, (1, length)), nn.Conv1d(1, 11, 3, padding=1), nn.BatchNorm1d(11), nn.Tanh()]
    hidden = [nn.Flatten(), nn.Linear(11 * length, 31), nn.BatchNorm1d(31), nn.Tanh()]
    return nn.Sequential(Double(), *channels, *hidden, nn.Linear(31, num_classes)).double()


class Block(nn.Module):
    """A residual block with batch normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 9), nn.BatchNorm1d(9), nn.Tanh(), nn.Linear(9, 16))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = values + self.layers(values)
        return answer


def residual_network(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Four of them, which three ranks share unevenly."""
    blocks = [Block() for _ in range(4)]
    return nn.Sequential(Double(), nn.Linear(*input_shape, 16), *blocks, nn.Linear(16, num_classes)).double()


NETWORKS = {"ist, convolutions": convolutional_network, "resist": residual_network}


def settings_for(name: str, **changes: object) -> Train:
    plain = "topk" in name or name.startswith("hogwild")
    method = str(STRATEGIES[name]["kind"])
    options = {
        "optimizer": "sgd",
        "optimizer_options": {} if plain else {"momentum": 0.9},
        "learning_rate": RATES.get(method, 0.05),
        "schedule": "constant",
        "epochs": EPOCHS,
        "strategy": STRATEGIES[name],
    }
    return Train(model=NETWORKS.get(name, network), batch_size=4, **{**options, **changes})


def train_with_all(clouds: Dataset, folder: str, backend: Backend, rank: Rank) -> dict[str, list[dict[str, float]]]:
    """Train with each strategy, whole and interrupted: histories by name."""
    histories = {}
    for name in STRATEGIES:
        os.environ["SPARKDL_HOST"] = f"host {rank.rank}" if name.endswith("a host each") else "host"
        job = Job(clouds, settings_for(name), f"{folder}/{name}", backend, reference=SIZE)
        outcome = train_rank(job, rank)
        histories[name] = outcome.history if outcome else []
        job = replace(job, folder=f"{folder}/{name}, interrupted", settings=settings_for(name, checkpoint_steps=1))
        interrupt(job, rank, at=14)  # in the middle of the second epoch, and of all periods
        if rank.rank == 0:
            shutil.copytree(job.folder, f"{folder}/{name}, begun")
        outcome = continued(job, rank)
        histories[f"{name}, interrupted"] = outcome.history if outcome else []
    return histories


class Trained:
    """What the ranks of one launch have left behind."""

    def __init__(self, folder: Path, backend: Backend, clouds: Dataset) -> None:
        self.folder, self.backend, self.clouds = folder, backend, clouds
        train = partial(train_with_all, clouds, str(folder), backend)
        self.histories: dict[str, list[dict[str, float]]] = run_local(train, SIZE, backend=backend)[0]

    def job(self, name: str, folder: str, **changes: object) -> Job:
        """A run with this strategy in one of the folders."""
        return Job(self.clouds, settings_for(name, **changes), str(self.folder / folder), self.backend, reference=SIZE)


@pytest.fixture(scope="module")
def trained(backend: Backend, clouds: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(tmp_path_factory.mktemp("strategies"), backend, clouds)


@pytest.mark.parametrize("name", STRATEGIES)
def test_it_learns(trained: Trained, name: str) -> None:
    history = trained.histories[name]
    assert len(history) == EPOCHS
    assert history[-1]["validation_loss"] < 0.85
    assert history[-1]["validation_accuracy"] > 0.7


@pytest.mark.parametrize("name", EXACT)
def test_it_equals_its_own_mathematics_in_one_process(trained: Trained, name: str) -> None:
    expected = simulated(name, trained.clouds)
    for key, weight in weights_of(trained.folder / name).items():
        torch.testing.assert_close(weight, expected[key], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", EXACT)
def test_a_run_that_was_interrupted_ends_with_the_same_bits_on_every_rank(trained: Trained, name: str) -> None:
    whole, continued = states_of(trained.folder / name), states_of(trained.folder / f"{name}, interrupted")
    assert_equal(continued, whole)


def train_racing(trained: Trained, rank: Rank) -> dict[str, list[float]]:
    """By strategy: the validation losses that runs end with when nothing interrupts them.

    They save as often as the interrupted one does: ranks wait for each other where they save, and race less.
    """
    losses: dict[str, list[float]] = {}
    for name, number in itertools.product(RACING, range(4)):
        outcome = train_rank(trained.job(name, f"{name}, left alone {number}", checkpoint_steps=1), rank)
        losses.setdefault(name, []).append(outcome.history[-1]["validation_loss"] if outcome else 0.0)
    return losses


def test_an_interrupted_run_without_locks_ends_within_the_spread_of_runs_left_alone(trained: Trained) -> None:
    found = run_local(partial(train_racing, trained), SIZE, backend=trained.backend)[0]
    for name, left_alone in found.items():
        spread = max(max(left_alone) - min(left_alone), SPREAD)
        loss = trained.histories[f"{name}, interrupted"][-1]["validation_loss"]
        assert min(left_alone) - spread <= loss <= max(left_alone) + spread


def continue_with_fewer(trained: Trained, rank: Rank) -> dict[str, list[float]]:
    """By strategy: how many rows of each epoch were answered correctly, all of them having been seen once."""
    correct = {}
    for name in STRATEGIES:
        job = trained.job(name, f"{name}, begun")
        outcome = continued(job, rank)
        correct[name] = [each["train_accuracy"] * ROWS for each in outcome.history] if outcome else []
    return correct


def test_another_number_of_ranks_goes_on_from_the_consensus_and_uses_every_row_once(trained: Trained) -> None:
    begun = {name: load_manifest(str(latest(trained.job(name, f"{name}, begun").folder))) for name in STRATEGIES}
    assert all(manifest.epoch == 1 and manifest.batches > 0 for manifest in begun.values())
    correct = run_local(partial(continue_with_fewer, trained), 2, backend=trained.backend)[0]
    for name in STRATEGIES:
        assert len(correct[name]) == EPOCHS
        assert correct[name] == pytest.approx([round(rows) for rows in correct[name]], abs=1e-6)


CHANGES = {"local_sgd": "diloco", "easgd": "allreduce", "diloco, streaming": "diloco", "ist": "allreduce"}


def begun_replicas(trained: Trained, rank: Rank) -> dict[str, dict[str, torch.Tensor]]:
    """By the strategy before: the weights that this rank begins with under another one."""
    weights = {}
    with trained.backend.connect() as communicator:
        for before, after in CHANGES.items():
            job = trained.job(after, before)
            model = build_model(job.dataset, job.settings)
            replica = Replica(
                model, job.settings, Classification(4), Groups(communicator, communicator), torch.device("cpu")
            )
            begin(replace(job, checkpoint=latest(job.folder)), replica, Reporter(rank, replica.task))
            weights[before] = dict(model.state_dict())
    return weights


def test_another_strategy_or_period_goes_on_from_the_consensus_and_says_so(trained: Trained) -> None:
    told: list[tuple[int, str]] = []
    begun = run_local(
        partial(begun_replicas, trained),
        SIZE,
        backend=trained.backend,
        on_message=lambda rank, message: told.append((rank, message["text"])),
    )
    for before in CHANGES:
        for weights in begun:
            assert_equal(weights[before], dict(weights_of(trained.folder / before)))
    assert [rank for rank, _ in told] == [0] * len(CHANGES)
    assert all("with another train.strategy" in text for _, text in told)


def train_alone(trained: Trained, rank: Rank) -> None:
    for name in STRATEGIES:
        train_rank(replace(trained.job(name, f"{name}, alone"), reference=1), rank)


def test_one_rank_means_what_it_should(trained: Trained) -> None:
    """Plain SGD, where only a mean over ranks is asked for; an outer step, a centre or a compression where it is."""
    run_local(partial(train_alone, trained), 1, backend=trained.backend)
    found = {name: weights_of(trained.folder / f"{name}, alone") for name in STRATEGIES}
    for name in ("local_sgd", "local_sgd, momentum averaged", "post_local_sgd", "sparknet"):
        assert_equal(found[name], found["allreduce"])
    compressed = [name for name in STRATEGIES if name.startswith("allreduce, ")]
    alone = "diloco", "diloco, streaming", "diloco, powersgd", "easgd", "deepspark", "hogwild", "ist", "resist"
    for name in (*alone, *compressed):
        expected = simulated(name, trained.clouds, size=1)
        for key, weight in found[name].items():
            torch.testing.assert_close(weight, expected[key], rtol=1e-9, atol=1e-9)


ELSEWHERE = {
    "allreduce": "sharded_servers",
    "allreduce, powersgd": "butterfly",
    "local_sgd": "two_levels",
    "post_local_sgd": "butterfly",
    "diloco, streaming": "server",
    "easgd": "two_levels",
}
"""By strategy: where else than in a ring numbers are added up."""


def train_elsewhere(clouds: Dataset, folder: str, rank: Rank) -> None:
    os.environ["SPARKDL_HOST"] = f"host {rank.rank % 2}"
    for name, topology in ELSEWHERE.items():
        settings = settings_for(name, strategy={**STRATEGIES[name], "topology": topology})
        train_rank(Job(clouds, settings, f"{folder}/{name}", TorchBackend(), reference=SIZE), rank)


def test_wherever_numbers_are_added_up_the_weights_are_the_same(clouds: Dataset, tmp_path: Path) -> None:
    run_local(partial(train_elsewhere, clouds, str(tmp_path)), SIZE, backend=TorchBackend())
    for name in ELSEWHERE:
        expected = simulated(name, clouds)
        for key, weight in weights_of(tmp_path / name).items():
            torch.testing.assert_close(weight, expected[key], rtol=1e-9, atol=1e-9)


def killed_in_an_exchange(job: Job, rank: Rank) -> None:
    """Train; the last rank is killed right after it has begun to send for the fifth time."""
    if rank.rank == SIZE - 1:
        kill_at_mean(4)
    train_rank(job, rank)


def continue_all(jobs: list[Job], rank: Rank) -> None:
    for job in jobs:
        continued(job, rank)


def test_a_kill_in_the_middle_of_an_exchange_changes_no_bit(trained: Trained) -> None:
    names = ["local_sgd", "diloco, streaming", "resist"]
    jobs = [trained.job(name, f"{name}, killed", checkpoint_steps=1) for name in names]
    for job in jobs:
        with pytest.raises(RankError, match="killed, out of memory, or crashed"):
            run_local(partial(killed_in_an_exchange, job), SIZE, backend=trained.backend)
    run_local(partial(continue_all, jobs), SIZE, backend=trained.backend)
    for name, job in zip(names, jobs, strict=True):
        assert_equal(states_of(job.folder), states_of(trained.folder / name))


def simulated(name: str, dataset: Dataset, *, size: int = SIZE) -> dict[str, torch.Tensor]:
    """The consensus at the end of a run, of all replicas in this process, by the definition of each method."""
    settings = settings_for(name)
    models = [build_model(dataset, settings) for _ in range(size)]
    optimizers = [build_optimizer(settings, model) for model in models]
    method = METHODS[str(STRATEGIES[name]["kind"])]
    rounds = method({key: value for key, value in STRATEGIES[name].items() if key != "kind"}, models, optimizers)
    next(rounds)
    for epoch in range(EPOCHS):
        loaders = [
            Loader(dataset, "train", batch_size=4, rank=rank, size=size, seed=settings.seed) for rank in range(size)
        ]
        for batches in zip(*(loader.epoch(epoch) for loader in loaders), strict=True):
            losses = []
            for model, batch in zip(models, batches, strict=True):
                model.zero_grad()
                losses.append(functional.cross_entropy(model(batch.inputs), batch.labels, reduction="sum"))
            rounds.send((epoch, losses, [len(batch.labels) for batch in batches]))
    weights = {key: torch.from_numpy(value.numpy().copy()) for key, value in rounds.send(None).items()}
    return weights | running_means(settings, dataset, weights, loaders)


def running_means(
    settings: Train, dataset: Dataset, weights: dict[str, torch.Tensor], loaders: list[Loader]
) -> dict[str, torch.Tensor]:
    """Those of batch normalisation, found from each rank's first batches of the last epoch; the mean over ranks."""
    models = [build_model(dataset, settings) for _ in loaders]
    for model, loader in zip(models, loaders, strict=True):
        model.load_state_dict(weights)
        batches = itertools.islice(loader.epoch(EPOCHS - 1), STATISTICS_BATCHES)
        update_bn([batch.inputs for batch in batches], model)
    return {name: value for name, value in mean_weights(models).items() if "running" in name}


Losses = tuple[int, list[torch.Tensor], list[int]]
Models, Optimizers = list[nn.Module], list[torch.optim.Optimizer]


def mean_weights(models: Models) -> dict[str, torch.Tensor]:
    states = [model.state_dict() for model in models]
    return {key: sum(state[key] for state in states) / len(states) for key in states[0]}


def step_together(models: Models, optimizers: Optimizers, mean: Iterator, work: Losses) -> None:
    epoch, losses, rows = work
    gradients = []
    for model, loss in zip(models, losses, strict=True):
        (loss * len(models) / sum(rows)).backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    means = mean.send((epoch, gradients))
    for model, optimizer in zip(models, optimizers, strict=True):
        for parameter, gradient in zip(model.parameters(), means, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()


def mean_of_gradients(options: dict, models: Models) -> Iterator:
    compression = options.get("compression", {"kind": "plain"})
    mean = MEANS[compression["kind"]](compression, len(models))
    next(mean)
    return mean


def step_alone(models: Models, optimizers: Optimizers, losses: list[torch.Tensor], rows: list[int]) -> None:
    for optimizer, loss, count in zip(optimizers, losses, rows, strict=True):
        if count:
            (loss / count).backward()
            optimizer.step()


def allreduce(options: dict, models: Models, optimizers: Optimizers) -> Iterator:
    mean = mean_of_gradients(options, models)
    work = yield
    while work:
        step_together(models, optimizers, mean, work)
        work = yield
    yield models[0].state_dict()


def local_sgd(
    options: dict, models: Models, optimizers: Optimizers, *, together_until: int = 0, first: int = 1
) -> Iterator:
    together = mean_of_gradients(options, models)
    work, steps = (yield), 0
    while work:
        epoch, losses, rows = work
        if epoch < together_until:
            step_together(models, optimizers, together, work)
        else:
            step_alone(models, optimizers, losses, rows)
            steps += 1
            if steps % options["period"] == 0:
                mean = mean_weights(models)
                for model in models:
                    model.load_state_dict(mean)
                if options.get("momentum") == "averaged":
                    average_momentum(models, optimizers)
        work = yield
    yield mean_weights(models)


def average_momentum(models: Models, optimizers: Optimizers) -> None:
    for parameters in zip(*(model.parameters() for model in models), strict=True):
        buffers = [
            optimizer.state[parameter]["momentum_buffer"]
            for optimizer, parameter in zip(optimizers, parameters, strict=True)
        ]
        mean = sum(buffers) / len(buffers)
        for buffer in buffers:
            buffer.copy_(mean)


def post_local_sgd(options: dict, models: Models, optimizers: Optimizers) -> Iterator:
    return local_sgd(options, models, optimizers, together_until=options["after_epochs"])


def diloco(options: dict, models: Models, optimizers: Optimizers) -> Iterator:
    """Outer Nesterov momentum 0.9 at rate 0.7, by hand; fragment f leaves at period * (f + 1) / fragments."""
    period, count, delay, mixing = (
        options.get(k, d) for k, d in (("period", 0), ("fragments", 1), ("delay", 0), ("mixing", 0))
    )
    names = [name for name, _ in models[0].named_parameters()]
    fragments = [names[number::count] for number in range(count)]
    outer = {name: parameter.detach().clone() for name, parameter in models[0].named_parameters()}
    velocity = {name: torch.zeros_like(value) for name, value in outer.items()}
    flying: dict[int, tuple[int, dict[str, torch.Tensor]]] = {}
    means = [mean_of_gradients(options, models) for _ in fragments]
    work, steps = (yield), 0
    while work:
        step_alone(models, optimizers, work[1], work[2])
        steps += 1
        for number, fragment in enumerate(fragments):
            if steps % period == (period * (number + 1) // count) % period:
                changes = [[outer[name] - model.get_parameter(name).detach() for name in fragment] for model in models]
                mean = means[number].send((work[0], changes))
                flying[number] = steps, dict(zip(fragment, mean, strict=True))
            if number in flying and flying[number][0] + delay == steps:
                for name, change in flying.pop(number)[1].items():
                    velocity[name] = 0.9 * velocity[name] + change
                    outer[name] = outer[name] - 0.7 * (change + 0.9 * velocity[name])
                    for model in models:
                        own = model.get_parameter(name)
                        own.data = mixing * own.data + (1 - mixing) * outer[name]
        work = yield
    yield mean_weights(models)


def easgd(options: dict, models: Models, optimizers: Optimizers, *, rate: float | None = None) -> Iterator:
    rate = rate or 0.9 / len(models)
    centre = copy.deepcopy(models[0].state_dict())
    work, steps = (yield), 0
    while work:
        step_alone(models, optimizers, work[1], work[2])
        steps += 1
        if steps % options["period"] == 0:
            pulls = [
                {key: rate * (value - centre[key]) for key, value in model.state_dict().items()} for model in models
            ]
            for model, pull in zip(models, pulls, strict=True):
                model.load_state_dict({key: value - pull[key] for key, value in model.state_dict().items()})
            centre = {key: value + sum(pull[key] for pull in pulls) for key, value in centre.items()}
        work = yield
    yield centre


def in_rounds(parts: Callable, options: dict, models: Models, optimizers: Optimizers) -> Iterator:
    """Networks of each rank's parts, trained by themselves; ``parts`` says what they are made of."""
    size, together = len(models), mean_of_gradients(options, models)
    steps_per_epoch = ceil(ceil(ROWS / size) / 4)
    dealing = range(options.get("allreduce_first", 0), EPOCHS - options.get("allreduce_last", 0))
    rate = optimizers[0].param_groups[0]["lr"]
    whole = copy.deepcopy(models[0])
    dealt = parts(whole, size)
    if 0 in dealing:
        dealt.make_fresh()

    def train(replicas: Models) -> None:
        models[:] = replicas
        optimizers[:] = [torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9) for model in models]

    number = steps = 0
    for epoch in range(EPOCHS):
        left = steps_per_epoch
        while left:
            steps = min(options["period"], left) if epoch in dealing else left
            train(dealt.begin(number) if epoch in dealing else [copy.deepcopy(whole) for _ in range(size)])
            for _ in range(steps):
                work = yield
                if epoch in dealing:
                    step_alone(models, optimizers, work[1], work[2])
                else:
                    step_together(models, optimizers, together, work)
            if epoch in dealing:
                dealt.end(models)
                number += 1
            else:
                whole.load_state_dict(models[0].state_dict())
            left -= steps
    yield
    yield whole.state_dict()


METHODS: dict[str, Callable[[dict, Models, Optimizers], Iterator]] = {
    "allreduce": allreduce,
    "local_sgd": local_sgd,
    "post_local_sgd": post_local_sgd,
    "sparknet": local_sgd,
    "diloco": diloco,
    "easgd": easgd,
    "deepspark": partial(easgd, rate=0.1),
    "hogwild": local_sgd,
    "ist": partial(in_rounds, DealtNeurons),
    "resist": partial(in_rounds, DealtBlocks),
}
