"""The weights of a registered model that training starts from."""

import pytest
import torch
from torch import nn

from sparkdl.data import Dataset
from sparkdl.errors import ModelError
from sparkdl.models import NETWORK_FILE, export_network
from sparkdl.settings import Tracking, Train
from sparkdl.training.starting_weights import starting_weights


def test_equal_buffers_are_not_taken_for_the_same_architecture(
    clouds: Dataset, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Scaled(nn.Sequential):
        def __init__(self, width: int) -> None:
            super().__init__(nn.Linear(4, width), nn.Linear(width, 4))
            self.register_buffer("scale", torch.ones(1))

    export_network(Scaled(5), tmp_path / NETWORK_FILE, torch.zeros(2, 4))
    monkeypatch.setattr("sparkdl.training.starting_weights.download", lambda uri, tracking: tmp_path)
    network = Scaled(7)
    network[1].bias = None  # which alone would fit
    with pytest.raises(ModelError, match="no weight of models:/a/1 fits"):
        starting_weights("models:/a/1", clouds, Train(model=lambda input_shape, num_classes: network), Tracking())
