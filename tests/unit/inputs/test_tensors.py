"""One tensor, or several by name: the same few operations."""

import torch
from torch import nn

from sparkdl.inputs.tensors import Inputs, answer, count_rows, moved, shapes_of, sliced


class Sum(nn.Module):
    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return left + 2 * right


LEFT, RIGHT = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([10.0, 20.0, 30.0])
NAMED: Inputs = {"right": RIGHT, "left": LEFT}


def test_a_network_gets_named_inputs_by_their_names_and_one_unnamed_input_as_it_is() -> None:
    assert answer(Sum(), NAMED).tolist() == [21.0, 42.0, 63.0]
    assert answer(nn.Identity(), LEFT) is LEFT


def test_named_inputs_are_cut_and_counted_by_rows_like_one() -> None:
    for inputs in (LEFT, NAMED):
        assert count_rows(inputs) == 3
        assert count_rows(sliced(inputs, slice(1, None))) == 2
    some = sliced(NAMED, slice(1, None))
    assert isinstance(some, dict) and some["right"].tolist() == [20.0, 30.0]
    assert shapes_of(NAMED) == "right (3,), left (3,)" and shapes_of(LEFT) == "(3,)"


def test_one_unnamed_input_that_is_on_the_device_is_not_copied() -> None:
    assert moved(LEFT, "cpu") is LEFT
    there = moved(NAMED, "cpu")
    assert isinstance(there, dict) and there["left"] is LEFT
