"""What a step on the driver says of a network before anything starts."""

from typing import Any

import pytest
import torch
from torch import nn

from sparkdl.errors import ConfigError
from sparkdl.settings import Train
from sparkdl.training.checks.trial import try_training
from sparkdl.training.tasks import Classification, Ranking


@pytest.mark.parametrize("weighted", [False, True])
def test_rows_that_are_ranked_are_tried_as_one_group_which_has_one_weight(weighted: bool) -> None:
    network = nn.Linear(3, 1)
    before = network.weight.clone()
    try_training(network, torch.rand(2, 3), Train(), Ranking(), weighted=weighted)
    assert torch.equal(network.weight, before)


def test_compiling_is_refused_where_layers_change_their_sizes() -> None:
    with pytest.raises(ValueError, match="compile needs synchronous ranks and layers that keep their sizes"):
        Train.model_validate({"compile": True, "strategy": "ist"})


@pytest.mark.parametrize(
    ("settings", "because"),
    [
        ({"optimizer": "adamw"}, "train.optimizer 'adamw'"),
        ({"optimizer": "sgd", "weight_decay": 0.1}, "train.weight_decay takes no others"),
        ({"optimizer": "sgd", "strategy": {"kind": "allreduce", "compression": "float16"}}, "strategy.compression"),
        ({"optimizer": "sgd", "strategy": {"kind": "allreduce", "topology": "server"}}, "topology server"),
        ({"optimizer": "sgd", "strategy": "async_easgd"}, "workers of train.strategy async_easgd"),
    ],
)
def test_what_makes_sparse_gradients_dense_is_said_before_anything_starts(
    settings: dict[str, Any], because: str, caplog: pytest.LogCaptureFixture
) -> None:
    try_training(*_words(), Train.model_validate(settings), Classification(4), weighted=False)
    (said,) = caplog.messages
    assert said.startswith("the sparse gradients of 0.weight are made dense, since") and because in said


def test_nothing_is_said_of_gradients_that_stay_sparse(caplog: pytest.LogCaptureFixture) -> None:
    for optimizer in ("sgd", "sparse_adam", "torch.optim:Adagrad"):
        settings = Train(optimizer=optimizer, clip_norm=1.0)
        try_training(*_words(), settings, Classification(4), weighted=False)
    assert caplog.messages == []


def test_an_optimizer_of_sparse_gradients_alone_is_named_with_one_that_takes_both() -> None:
    words, rows = _words()
    network, settings = nn.Sequential(words, nn.Linear(4, 4)), Train(optimizer="torch.optim:SparseAdam")
    with pytest.raises(ConfigError, match=r"cannot use dense gradients.*sparse_adam supports both kinds"):
        try_training(network, rows, settings, Classification(4), weighted=False)


def _words() -> tuple[nn.Module, torch.Tensor]:
    """An embedding with sparse gradients, and two rows for it."""
    return nn.Sequential(nn.EmbeddingBag(9, 4, sparse=True), nn.Identity()), torch.tensor([[1], [5]])
