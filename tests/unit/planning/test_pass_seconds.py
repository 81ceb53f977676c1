"""How long networks take on this machine."""

import pytest
import torch
from torch import nn

from sparkdl.planning.pass_seconds import pass_seconds, seconds_of_optimizer
from sparkdl.settings import Train


def test_a_larger_network_takes_longer_and_nothing_of_it_changes() -> None:
    small, large = nn.Linear(64, 8), nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(4)))
    assert pass_seconds(small, torch.rand(2, 64), 16) < pass_seconds(large, torch.rand(2, 1024), 16)
    assert all(parameter.grad is None for parameter in large.parameters())


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_an_optimizer_takes_less_than_a_microsecond_a_number(optimizer: str) -> None:
    assert 0 < seconds_of_optimizer(Train(optimizer=optimizer)) < 1e-6
