"""What a step on the driver says of a network before anything starts."""

import pytest
import torch
from torch import nn

from sparkdl.settings import Train
from sparkdl.training.tasks import Ranking
from sparkdl.training.trial import try_training


@pytest.mark.parametrize("weighted", [False, True])
def test_rows_that_are_ranked_are_tried_as_one_group_which_has_one_weight(weighted: bool) -> None:
    network = nn.Linear(3, 1)
    before = network.weight.clone()
    try_training(network, torch.rand(2, 3), Train(), Ranking(), weighted=weighted)
    assert torch.equal(network.weight, before)
