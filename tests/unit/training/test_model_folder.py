"""What is tried of a model before anything expensive."""

import pytest
import torch
from torch import nn

from sparkdl.data import Dataset
from sparkdl.errors import ModelError
from sparkdl.models import NETWORK_FILE, export_network
from sparkdl.settings import Tracking, Train
from sparkdl.training import model_folder
from sparkdl.training.model_folder import check_model, starting_weights


class Masked(nn.Linear):
    """A layer with a mask, which is a buffer of booleans."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.register_buffer("mask", torch.ones(4, dtype=torch.bool))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return super().forward(rows) * self.mask


class Half(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4, dtype=torch.bfloat16)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return super().forward(rows.bfloat16()).float()


class WithState(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4)

    def get_extra_state(self) -> dict[str, int]:
        return {"seen": 1}

    def set_extra_state(self, state: dict[str, int]) -> None:
        pass


def test_a_model_may_have_a_mask(clouds: Dataset) -> None:
    check_model(clouds, Train(model=Masked))


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (Half, r"trains 'weight', which is of torch\.bfloat16.*set train\.precision"),
        (WithState, "'_extra_state', which is no tensor; make it a buffer"),
    ],
)
def test_what_ranks_cannot_exchange_is_an_error_before_anything_starts(
    clouds: Dataset, model: type[nn.Module], says: str
) -> None:
    with pytest.raises(ModelError, match=says):
        check_model(clouds, Train(model=model))


def test_equal_buffers_are_not_taken_for_the_same_architecture(
    clouds: Dataset, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Scaled(nn.Sequential):
        def __init__(self, width: int) -> None:
            super().__init__(nn.Linear(4, width), nn.Linear(width, 4))
            self.register_buffer("scale", torch.ones(1))

    export_network(Scaled(5), tmp_path / NETWORK_FILE, torch.zeros(2, 4))
    monkeypatch.setattr(model_folder, "download", lambda uri, tracking: tmp_path)
    weights = Scaled(7)
    weights[1].bias = None  # which alone would fit
    with pytest.raises(ModelError, match="no weight of models:/a/1 fits"):
        starting_weights("models:/a/1", weights, str(tmp_path), Tracking())
