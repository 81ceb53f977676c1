"""The weights of a registered model that training starts from."""

from pathlib import Path

import pytest
import torch
from torch import nn

from sparkdl.data import Dataset
from sparkdl.errors import ModelError
from sparkdl.settings import Tracking, Train
from sparkdl.training.starting_weights import starting_weights
from tests.saved_network import saved_network


def test_equal_buffers_are_not_taken_for_the_same_architecture(clouds: Dataset, tmp_path: Path) -> None:
    class Scaled(nn.Sequential):
        def __init__(self, width: int) -> None:
            super().__init__(nn.Linear(4, width), nn.Linear(width, 4))
            self.register_buffer("scale", torch.ones(1))

    model = saved_network(tmp_path / "model", Scaled(5), torch.zeros(2, 4))
    network = Scaled(7)
    network[1].bias = None  # which alone would fit
    with pytest.raises(ModelError, match=f"no weight of {model} fits"):
        starting_weights(model, clouds, Train(model=lambda input_shape, num_classes: network), Tracking())
