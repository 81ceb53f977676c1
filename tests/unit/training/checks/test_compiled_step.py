"""What PyTorch's compiler cannot do is said before anything starts."""

import pytest
from torch import nn

from sparkdl.errors import ConfigError
from sparkdl.settings import Train
from sparkdl.training.checks.trial import try_training
from sparkdl.training.tasks import Classification


def test_a_network_that_cannot_be_compiled_is_named_with_what_is_lacking(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch._inductor.config  # of PyTorch's compiler, which takes seconds to import

    monkeypatch.setattr(torch._inductor.config.cpp, "cxx", ("/nowhere",))
    network = nn.Sequential(nn.Linear(3, 5), nn.GELU(), nn.Linear(5, 2))
    with pytest.raises(ConfigError, match=r"train\.compile: PyTorch cannot compile the model 'mlp' here \(.*compiler"):
        try_training(network, torch.rand(2, 3), Train(compile=True), Classification(2), weighted=False)
