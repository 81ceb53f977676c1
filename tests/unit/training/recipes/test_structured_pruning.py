"""Neurons and channels leave a network: those with the smallest weights, and only where the rest does not notice."""

from pathlib import Path

import pytest
import torch
from torch import nn

from sparkdl.data import Dataset
from sparkdl.errors import ConfigError, ModelError
from sparkdl.models import full_state
from sparkdl.models.networks import cnn, resnet
from sparkdl.settings import Tracking, Train
from sparkdl.training.checks.tried_model import check_model
from sparkdl.training.network_to_train import build_model
from sparkdl.training.recipes.structured_pruning import prune_neurons
from sparkdl.training.starting_weights import starting_weights
from tests.saved_network import saved_network

IMAGES = torch.rand(3, 1, 12, 12)
PRUNED = Train.model_validate({"pruning": {"kind": "structured", "keep": 0.25}, "start_from": "models:/large/1"})


def shapes(network: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(weight.shape) for name, weight in network.named_parameters()}


def test_the_neurons_with_the_smallest_weights_leave_and_those_without_effect_are_not_missed() -> None:
    network = cnn(input_shape=(1, 12, 12), num_classes=3, channels=(4, 6), hidden=8).eval()
    *convolutions, hidden, last = (layer for layer in network.modules() if isinstance(layer, nn.Conv2d | nn.Linear))
    with torch.no_grad():
        for layer in (*convolutions, hidden):
            layer.weight[::2] = 0
            layer.bias[::2] = 0
        for layer in (convolutions[0], hidden):  # neither large weights that nothing reads, nor the other way round
            layer.weight[0] = 100
        convolutions[1].weight[:, 0] = 0
        last.weight[:, 0] = 0
        expected = network(IMAGES)
        prune_neurons(network, torch.zeros(2, 1, 12, 12), keep=0.5)
        torch.testing.assert_close(network(IMAGES), expected)
    assert [tuple(layer.weight.shape) for layer in (*convolutions, hidden, last)] == [
        (2, 1, 3, 3),
        (3, 2, 3, 3),
        (4, 3 * 3 * 3),
        (3, 4),
    ]


def test_in_a_residual_network_channels_leave_inside_of_blocks_and_as_many_from_each_group() -> None:
    network = resnet(input_shape=(1, 12, 12), num_classes=3, channels=(16, 32))
    before = shapes(network)
    prune_neurons(network, torch.zeros(2, 1, 12, 12), keep=0.5)
    changed = {name: shape for name, shape in shapes(network).items() if shape != before[name]}
    assert changed == {
        "0.layers.3.residual.0.weight": (8, 16, 3, 3),
        "0.layers.3.residual.1.weight": (8,),
        "0.layers.3.residual.1.bias": (8,),
        "0.layers.3.residual.3.weight": (16, 8, 3, 3),
        "0.layers.4.residual.0.weight": (16, 16, 3, 3),
        "0.layers.4.residual.1.weight": (16,),
        "0.layers.4.residual.1.bias": (16,),
        "0.layers.4.residual.3.weight": (32, 16, 3, 3),
    }
    network(IMAGES).sum().backward()


class Written(nn.Module):
    """Has the number of its neurons written in it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(rows).view(-1, 6))


@pytest.mark.parametrize(
    ("network", "says"),
    [
        (nn.Linear(4, 2), r"train\.pruning structured removes neurons of hidden layers.*the network has none"),
        (Written(), r"cannot be computed with 0\.25 of the neurons of first: .*number of neurons written into it"),
    ],
)
def test_a_network_of_which_no_neuron_can_leave_is_an_error(network: nn.Module, says: str) -> None:
    with pytest.raises(ModelError, match=says):
        prune_neurons(network, torch.zeros(2, 4), keep=0.25)


def test_everyone_builds_the_shapes_of_the_weights_that_training_starts_from(clouds: Dataset, tmp_path: Path) -> None:
    large = build_model(clouds, Train(seed=7))
    model = saved_network(tmp_path / "model", large, torch.zeros(2, 4))
    start = starting_weights(model, clouds, PRUNED, Tracking())
    for seed in (0, 1):
        built = full_state(build_model(clouds, PRUNED.model_copy(update={"seed": seed})))
        assert {name: value.shape for name, value in built.items()} == {n: value.shape for n, value in start.items()}
    assert start["1.weight"].shape == (64, 4)
    rows = large[1].weight.detach()
    assert all((rows == row).all(dim=1).any() for row in start["1.weight"])
    wider = PRUNED.model_copy(update={"model_options": {"hidden": [256, 64]}})
    with pytest.raises(ModelError, match=r"has '3\.weight' with shape \(64, 256\), but the model has it with shape"):
        starting_weights(model, clouds, wider, Tracking())
    check_model(clouds, PRUNED)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"start_from": None}, "set start_from to a registered model"),
        ({"strategy": {"kind": "ist"}}, "strategy ist cuts the network in its own way"),
        ({"pruning": {"kind": "structured", "keep": 1}}, "keep"),
    ],
)
def test_what_cannot_be_pruned_is_an_error_before_anything_starts(changes: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        PRUNED.model_copy(update=changes)


def test_channels_leave_together_with_the_depthwise_convolution_that_reads_them_one_by_one() -> None:
    depthwise = nn.Conv2d(8, 8, 3, groups=8)
    first, between, last = nn.Conv2d(1, 8, 1), nn.Conv2d(8, 8, 1), nn.Linear(8 * 100, 3)
    network = nn.Sequential(first, nn.ReLU(), depthwise, nn.ReLU(), between, nn.ReLU(), nn.Flatten(), last).eval()
    with torch.no_grad():
        for layer in (first, depthwise, between):
            layer.weight[::2] = 0
            assert layer.bias is not None
            layer.bias[::2] = 0
        expected = network(IMAGES)
        prune_neurons(network, torch.zeros(2, 1, 12, 12), keep=0.5)
        torch.testing.assert_close(network(IMAGES), expected)
    assert [tuple(layer.weight.shape) for layer in (first, depthwise, between, last)] == [
        (4, 1, 1, 1),
        (4, 1, 3, 3),
        (4, 4, 1, 1),
        (3, 4 * 100),
    ]
    assert depthwise.groups == 4
