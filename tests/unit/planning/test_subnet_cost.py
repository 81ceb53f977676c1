"""What a step of independent subnet training is predicted to cost."""

import math

import pytest
import torch
from torch import nn

from sparkdl.models import build, build_without_weights
from sparkdl.models.networks import resnet
from sparkdl.planning.cost import Link, StepCost, gathered, ring
from sparkdl.planning.subnet_cost import SubNetworkCost, find_dealt, may_be_dealt, of_sub_networks
from sparkdl.settings.strategies import ISTOptions, ResISTOptions

LINK = Link(start=1e-4, bandwidth=12.5e6)
ROWS = torch.zeros(2, 8)


def wide() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4))


def cost(**options: object) -> SubNetworkCost:
    """Measured on two ranks: 0.06 s a step, of which the whole network takes 0.1."""
    measured = StepCost(computing=0.06, payload=0.0, period=10, adds_up=False)
    return of_sub_networks(measured, ISTOptions(**options), wide(), ROWS, whole=0.1, ranks=2)


def bytes_sent(ranks: int, *, sharded: bool = False) -> float:
    inner = 64 * 32 / ranks if sharded else 64 * 32 / ranks**2
    return 4 * (8 * 64 / ranks + 64 / ranks + inner + 32 / ranks + 32 * 4 / ranks)


@pytest.mark.parametrize("ranks", [2, 4, 32])
@pytest.mark.parametrize("sharded", [False, True])
def test_once_in_a_period_each_rank_receives_everybodys_share(ranks: int, sharded: bool) -> None:
    predicted = cost(sharded=sharded)
    exchange = LINK.seconds(gathered(bytes_sent(ranks, sharded=sharded), ranks)) + LINK.seconds(ring(4 * 4, ranks))
    without_link = predicted.seconds(Link(0, math.inf), ranks)
    assert predicted.seconds(LINK, ranks) == pytest.approx(without_link + exchange / 10)


def test_what_a_rank_computes_falls_with_the_multiplications_of_its_sub_network() -> None:
    def operations(ranks: int) -> float:
        return 8 * 64 / ranks + 64 * 32 / ranks**2 + 32 * 4 / ranks

    seconds = {ranks: cost().seconds(Link(0, math.inf), ranks) for ranks in (1, 2, 4)}
    assert seconds[1] == pytest.approx(0.1) and seconds[2] == pytest.approx(0.06)
    slope = (0.1 - 0.06) / (operations(1) - operations(2))
    assert seconds[4] == pytest.approx(0.06 - slope * (operations(2) - operations(4)))


def test_more_ranks_than_neurons_have_no_prediction() -> None:
    assert math.isnan(cost().seconds(LINK, 33)) and not math.isnan(cost().seconds(LINK, 32))


def test_a_convolution_multiplies_its_weights_once_for_each_pixel() -> None:
    network = nn.Sequential(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 4 * 4, 3))
    dealt, uncut = find_dealt(network, torch.zeros(2, 1, 6, 6), ISTOptions())
    assert [(each.operations, each.neurons) for each in dealt if each.operations] == [(54 * 16, (6,)), (288, (6,))]
    assert uncut == 4 * 3 + 8  # the outputs' bias, and how many batches batch normalisation has seen
    assert {each.part(3) for each in dealt} == {1 / 3}


def test_of_residual_blocks_each_rank_has_its_share_of_all() -> None:
    network = resnet(input_shape=(1, 8, 8), num_classes=3, channels=(8,), blocks=4)
    dealt, uncut = find_dealt(network, torch.zeros(2, 1, 8, 8), ResISTOptions())
    assert {each.neurons for each in dealt} == {(4,)} and {each.part(3) for each in dealt} == {1 / 2}
    assert sum(each.operations for each in dealt) == 4 * 2 * 8 * 8 * 9 * 64  # blocks, convolutions, weights, pixels
    assert uncut == sum(parameter.nbytes for parameter in network.parameters()) - sum(each.bytes for each in dealt)


def test_a_network_without_hidden_layers_is_none_to_deal() -> None:
    assert may_be_dealt(wide(), ROWS, ranks=2)
    assert not may_be_dealt(wide(), ROWS, ranks=33)
    assert not may_be_dealt(nn.Linear(8, 4), ROWS, ranks=2)


def test_a_network_without_weights_is_planned_in_parts() -> None:
    settings = {
        "input_shape": (2, 4, 1),
        "num_classes": 4,
        "mean": [0.5],
        "std": [0.1],
        "options": {"hidden": [64, 32]},
    }
    images = torch.zeros(2, 2, 4, 1, dtype=torch.uint8)
    hollow = build_without_weights("mlp", **settings)  # what scales its images is there, on the CPU
    expected = find_dealt(build("mlp", **settings), images, ISTOptions())
    assert find_dealt(hollow, images.to("meta"), ISTOptions()) == expected
    assert not may_be_dealt(hollow, ROWS.to("meta"), ranks=2)
