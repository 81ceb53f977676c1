"""The smallest weights become zero, more and more of them, and stay so."""

import pytest
import torch
from torch import nn

from sparkdl.errors import ConfigError
from sparkdl.settings import Train
from sparkdl.settings.pruning_options import MagnitudeOptions
from sparkdl.training.recipes.magnitude_pruning import MagnitudePruning, sparsity_at

OPTIONS = MagnitudeOptions(sparsity=0.8, begin_epoch=1, end_epoch=3)


def test_the_part_that_is_zero_grows_by_the_cubic_schedule_between_two_epochs() -> None:
    assert [sparsity_at(OPTIONS, epochs) for epochs in (0, 1, 3, 9)] == [0, 0, 0.8, 0.8]
    for epochs in (1.5, 2, 2.9):
        wanted = 0.8 * (1 - (1 - (epochs - 1) / 2) ** 3)
        assert wanted - 0.8 / 100 <= sparsity_at(OPTIONS, epochs) <= wanted


def test_the_smallest_weights_leave_and_stay_away_whatever_the_optimizer_does() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 5))
    nn.init.zeros_(network[2].weight)  # which is trained before anything leaves
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)
    pruning = MagnitudePruning(OPTIONS, network.parameters())
    gone = [torch.zeros_like(weight, dtype=torch.bool) for weight in (network[0].weight, network[2].weight)]
    for step in range(40):
        loss = network(torch.randn(8, 10)).square().sum() + network(torch.randn(8, 10)).sum()
        optimizer.zero_grad()
        loss.backward()
        smallest = network[0].weight.detach().abs().clone()
        with pruning.step(step / 10, (step + 1) / 10):
            optimizer.step()
        for weight, before in zip((network[0].weight, network[2].weight), gone, strict=True):
            assert not weight[before].any()
            before |= weight == 0
            assert int(before.sum()) == round(sparsity_at(OPTIONS, (step + 1) / 10) * weight.numel())
        if step == 10:  # the first that leave
            assert smallest[gone[0]].max() < smallest[~gone[0]].median()
    assert network[0].bias.all()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"strategy": {"kind": "local_sgd"}}, "equal after each step, but with strategy local_sgd"),
        ({"epochs": 3}, r"pruning\.end_epoch is 3 and epochs is 3"),
        ({"pruning": {"kind": "magnitude", "begin_epoch": 3, "end_epoch": 3}}, "begin before the end"),
        ({"pruning": {"kind": "magnitude", "sparsity": 1, "end_epoch": 3}}, r"pruning\.sparsity"),
        ({"adapters": {"kind": "lora"}}, "prune the adapters"),
    ],
)
def test_what_cannot_be_pruned_is_an_error_before_anything_starts(changes: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Train.model_validate({"epochs": 9, "pruning": OPTIONS, **changes})
