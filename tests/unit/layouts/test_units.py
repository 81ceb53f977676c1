"""Which layers come together, and which networks cannot be cut into shards."""

import pytest
import torch
from torch import nn

from sparkdl.errors import ModelError
from sparkdl.layouts import check_may_be_sharded
from sparkdl.layouts.units import units_of


class Network(nn.Module):
    """An embedding and an output that share a weight, and blocks in between."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 4)
        self.blocks = nn.ModuleList([nn.TransformerEncoderLayer(4, 1, 8) for _ in range(2)])
        self.head = nn.Sequential(nn.ReLU(), nn.Linear(4, 4), nn.Linear(4, 9, bias=False))
        self.head[2].weight = self.table.weight


def test_blocks_and_layers_of_containers_come_together_inner_ones_first() -> None:
    network = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.Tanh()), nn.ModuleList([Network()]))
    names = {module: name for name, module in network.named_modules()}
    found = [names[unit] for unit in units_of(network)]
    assert set(found) == {"0", "1.0", "2.0", "2.0.blocks.0", "2.0.blocks.1", "2.0.head.1"}
    assert found.index("2.0") > found.index("2.0.blocks.0")


def test_what_shares_a_weight_comes_together_with_what_it_shares_it_with() -> None:
    network = Network()
    assert network.head[2] not in units_of(network)


class Scaled(nn.Module):
    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (Scaled(torch.ones(())), "the weight 'weight' is a single number"),
        (Scaled(torch.ones(3, 2).T), "'weight' is not contiguous"),
        (nn.Sequential(nn.Embedding(3, 2, sparse=True)), "the gradients of '0' are sparse"),
        (nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double()), "torch.float32 and torch.float64"),
    ],
)
def test_a_network_that_cannot_be_cut_is_an_error_before_anything_starts(network: nn.Module, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        check_may_be_sharded(network)
