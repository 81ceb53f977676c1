"""What a step on the driver says of a network before anything starts."""

import pytest
import torch
from torch import nn

from sparkdl.errors import ConfigError
from sparkdl.settings import Train
from sparkdl.training.tasks import Classification, Ranking
from sparkdl.training.trial import try_training


@pytest.mark.parametrize("weighted", [False, True])
def test_rows_that_are_ranked_are_tried_as_one_group_which_has_one_weight(weighted: bool) -> None:
    network = nn.Linear(3, 1)
    before = network.weight.clone()
    try_training(network, torch.rand(2, 3), Train(), Ranking(), weighted=weighted)
    assert torch.equal(network.weight, before)


def test_a_network_that_cannot_be_compiled_is_named_with_what_is_lacking(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch._inductor.config  # of PyTorch's compiler, which takes seconds to import

    monkeypatch.setattr(torch._inductor.config.cpp, "cxx", ("/nowhere",))
    network = nn.Sequential(nn.Linear(3, 5), nn.GELU(), nn.Linear(5, 2))
    with pytest.raises(ConfigError, match=r"train\.compile: PyTorch cannot compile the model 'mlp' here \(.*compiler"):
        try_training(network, torch.rand(2, 3), Train(compile=True), Classification(2), weighted=False)


def test_compiling_is_refused_where_layers_change_their_sizes() -> None:
    with pytest.raises(ValueError, match="compile is for a network whose layers keep their sizes"):
        Train.model_validate({"compile": True, "strategy": "ist"})
