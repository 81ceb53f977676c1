"""What a worker of Downpour tells servers of its pushes, over the real transport."""

import math
from collections.abc import Iterator
from contextlib import closing

import pytest
import torch
from torch import nn

from sparkdl.parameters import RULES, Credentials, ParameterClient, ParameterServer, Part, Partition, Push
from sparkdl.settings.strategies import DownpourOptions
from sparkdl.training.asynchronous import downpour
from sparkdl.training.asynchronous.downpour import Downpour
from sparkdl.training.asynchronous.exchange import StepNote

CREDENTIALS = Credentials.create()


class OneServer:
    """Knows where the only server is."""

    def __init__(self, model: nn.Module) -> None:
        trained = {name: each.detach() for name, each in model.named_parameters()}
        self.partition = Partition(trained, {}, servers=1)
        memory = self.partition.new_memory(0)
        self.partition.cut(trained, 0, memory)
        self.part = Part(self.partition, 0, memory, RULES["sgd"])
        self.server = ParameterServer("127.0.0.1", CREDENTIALS, self.part, {})

    def find(self, server: int, lost: str | None) -> str:
        return self.server.address


@pytest.fixture
def servers() -> Iterator[OneServer]:
    found = OneServer(nn.Linear(2, 1))
    with found.server:
        yield found


@pytest.mark.parametrize(
    ("short", "period", "expected"),
    [(0.0, 1, {0: 1, 1: 3}), (0.0, 2, {0: 1, 1: 1}), (math.inf, 1, {0: 4})],
    ids=["long exchanges", "every second step", "short exchanges"],
)
def test_staleness_counts_from_the_values_that_gradients_were_computed_from(
    servers: OneServer, monkeypatch: pytest.MonkeyPatch, short: float, period: int, expected: dict[int, int]
) -> None:
    monkeypatch.setattr(downpour, "SHORT", short)
    model = nn.Linear(2, 1)
    client = ParameterClient(servers.partition, CREDENTIALS, servers, timeout=5)
    options = DownpourOptions(rule="sgd", period=period)
    with closing(client), closing(Downpour(options, model, client, share=1.0, pace=None)) as exchange:
        for step in range(4):
            exchange.begin_step()
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter)
            complete = (step + 1) % period == 0
            push = Push(0, 0, step // period, 0, 0.1, ()) if complete else None
            exchange.finish_step(StepNote(0.1, (1.0, 1.0), push))
        exchange.finish()
    assert dict(servers.part.tally()["staleness"]) == expected
