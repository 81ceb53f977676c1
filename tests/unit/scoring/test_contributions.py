"""Integrated gradients."""

import torch
from torch import nn

from sparkdl.scoring.contributions import contributions


def test_of_a_linear_network_they_are_weight_times_feature() -> None:
    torch.manual_seed(0)
    network, rows = nn.Linear(4, 3), torch.randn(5, 4)
    found = contributions(network, rows)
    chosen = network(rows).argmax(dim=1)
    torch.testing.assert_close(found[:, :4], rows * network.weight[chosen])
    torch.testing.assert_close(found[:, 4], network.bias[chosen])


def test_they_add_up_to_the_largest_answer() -> None:
    torch.manual_seed(0)
    network, rows = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3)), torch.randn(50, 6)
    found = contributions(network, rows)
    assert found.shape == (50, 7)
    torch.testing.assert_close(found.sum(dim=1), network(rows).amax(dim=1), atol=0.02, rtol=0)


def test_a_feature_that_the_network_does_not_look_at_contributes_nothing() -> None:
    assert (contributions(lambda rows: rows[:, :2].tanh(), torch.randn(5, 3))[:, 2] == 0).all()
