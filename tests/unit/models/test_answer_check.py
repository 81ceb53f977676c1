"""What a network answers two rows, and whether it fits the labels."""

import pytest
import torch
from torch import nn

from sparkdl.errors import ModelError
from sparkdl.models import build, try_network


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda: nn.Linear(5, 4), r"returned \(2, 4\) for two rows, but the labels have 3 classes"),
        (lambda: nn.Linear(6, 3), r"failed on two rows of shape \(5,\)"),
        (lambda: nn.LSTM(5, 3), "it returns a tuple"),
    ],
)
def test_a_network_that_does_not_fit_is_told_apart(model: object, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        build(model, input_shape=(5,), num_classes=3)  # type: ignore[arg-type]


def test_a_tried_network_is_in_the_mode_that_it_was_in_and_has_no_gradients() -> None:
    network = nn.Sequential(nn.Linear(5, 3), nn.Dropout(0.5), nn.BatchNorm1d(3))
    for training in (True, False):
        network.train(training)
        try_network(network, "mine", torch.zeros(2, 5), 3)
        assert [module.training for module in network.modules()] == [training] * 4
    assert all(parameter.grad is None for parameter in network.parameters())
    assert network[2].num_batches_tracked == 0
