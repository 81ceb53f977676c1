import torch
from torch import nn

from sparkdl.models import full_state, load_full_state


class Centred(nn.Linear):
    """Has a buffer that a state_dict leaves out."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.register_buffer("mean", torch.zeros(2), persistent=False)


def test_buffers_that_a_state_dict_leaves_out_come_back() -> None:
    first, second = Centred(), Centred()
    first.mean.add_(3)
    before = second.mean
    load_full_state(second, full_state(first))
    torch.testing.assert_close(full_state(second), full_state(first))
    assert second.mean is before


def test_a_file_of_before_leaves_such_buffers_as_they_are() -> None:
    first, second = Centred(), Centred()
    load_full_state(second, first.state_dict())
    torch.testing.assert_close(full_state(second), full_state(first))
    first.mean = torch.ones(5, 2)  # as a forward pass may
    load_full_state(second, full_state(first))
    assert second.mean.shape == (5, 2)
