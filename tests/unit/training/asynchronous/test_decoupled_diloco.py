"""Decoupled DiLoCo over the real transport equals plain arithmetic."""

from collections.abc import Iterator
from functools import partial

import pytest
import torch
from torch import nn

from sparkdl.parameters import Credentials, Outer, ParameterClient, ParameterServer, Part, Partition, Push
from sparkdl.settings.strategies import DecoupledDiLoCoOptions
from sparkdl.training.asynchronous.decoupled_diloco import DecoupledDiLoCo
from sparkdl.training.asynchronous.exchange import StepNote

from .conftest import Training, weights_of
from .test_driver import RATE, simulated

OPTIONS = DecoupledDiLoCoOptions(period=1, fragments=2, quorum=2, grace=0, outer_learning_rate=0.7, outer_momentum=0.9)
CREDENTIALS = Credentials.create()


class Two(nn.Module):
    """Two parameters, each a fragment of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.tensor([1.0, 2.0], dtype=torch.float64))
        self.second = nn.Parameter(torch.tensor([3.0], dtype=torch.float64))


class Replica:
    """A worker's, that takes steps of SGD along gradients that somebody else chooses."""

    def __init__(self, server: ParameterServer, number: int) -> None:
        self.model, self.number, self.steps = Two(), number, 0
        trained = dict(self.model.named_parameters())
        self.client = ParameterClient(Partition(trained, {}, servers=1, fragments=2), CREDENTIALS, self, timeout=5)
        optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE)
        self.exchange = DecoupledDiLoCo(OPTIONS, self.model, self.client, optimizer, share=0.5, pace=None)
        self.server = server

    def find(self, server: int, lost: str | None) -> str:
        return self.server.address

    def step(self, gradient: float, rows: float) -> None:
        self.exchange.begin_step()
        for parameter in self.model.parameters():
            parameter.grad = torch.full_like(parameter, gradient)
        push = Push(0, self.number, self.steps, 0, RATE, ())
        self.exchange.finish_step(StepNote(RATE, (0.0, rows, 1.0), push))
        self.exchange.finish()
        self.steps += 1


@pytest.fixture
def replicas() -> Iterator[tuple[Replica, Replica]]:
    values = {name: each.detach() for name, each in Two().named_parameters()}
    partition = Partition(values, {}, servers=1, fragments=2)
    memory = partition.new_memory(0)
    partition.cut(values, 0, memory)
    part = Part(partition, 0, memory, partial(Outer, rate=0.7, momentum=0.9, quorum=2, grace=0.0))
    with ParameterServer("127.0.0.1", CREDENTIALS, part, {}) as server:
        found = Replica(server, 0), Replica(server, 1)
        yield found
        for replica in found:
            replica.exchange.close()
            replica.client.close()


def test_fragments_take_outer_steps_on_mean_changes_weighed_by_rows(replicas: tuple[Replica, Replica]) -> None:
    gradients, rows = ((1.0, 2.0, 3.0, 4.0), (5.0, 6.0, 7.0, 8.0)), (10.0, 30.0)
    for step in range(4):
        for replica, of_replica, count in zip(replicas, gradients, rows, strict=True):
            replica.step(of_replica[step], count)

    # The first fragment is pushed after steps 1 and 3, the second after steps 2 and 4; what comes of a push is taken
    # when the other fragment has been pushed after it.
    start = Two()
    for name, turns in (("first", ((0, 1), (1, 3))), ("second", ((0, 2), (2, 4)))):
        value, velocity = dict(start.named_parameters())[name].detach().clone(), 0.0
        for begin, end in turns:
            changes = [RATE * sum(of_replica[begin:end]) for of_replica in gradients]
            mean = sum(change * count for change, count in zip(changes, rows, strict=True)) / sum(rows)
            velocity = 0.9 * velocity + mean
            value -= 0.7 * (mean + 0.9 * velocity)
        client = replicas[0].client
        found = {each: torch.empty_like(parameter) for each, parameter in start.named_parameters()}
        client.pull()
        client.copy_to(found)
        assert torch.allclose(found[name], value, atol=1e-12)


def test_what_a_replica_changes_while_a_fragment_travels_stays(replicas: tuple[Replica, Replica]) -> None:
    one, other = replicas
    one.step(1.0, 1.0)
    other.step(1.0, 1.0)  # the first fragment's quorum is there
    before = one.model.first.detach().clone()
    one.step(2.0, 1.0)  # and comes to this replica now
    outer = Two().first.detach() - 0.7 * 1.9 * RATE * 1.0
    assert torch.allclose(before, Two().first.detach() - RATE * 1.0)
    assert torch.allclose(one.model.first.detach(), outer - RATE * 2.0, atol=1e-12)


def test_alone_and_with_plain_outer_steps_it_is_sgd(train: Training) -> None:
    plain = {"period": 1, "fragments": 1, "quorum": 1, "grace": 0, "outer_learning_rate": 1, "outer_momentum": 0}
    found = train({"kind": "decoupled_diloco", **plain}, workers=1, optimizer="sgd", best_by="loss")
    expected = simulated(train, 1, lambda weights, gradient: weights.sub_(gradient, alpha=RATE))
    assert torch.allclose(weights_of(found), expected, atol=1e-12)
