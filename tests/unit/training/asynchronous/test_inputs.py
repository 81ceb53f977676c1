"""Asynchronous training with named inputs, texts in blocks, and adapters."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sparkdl.data import Dataset
from sparkdl.models import full_state
from sparkdl.training.checkpoints.checkpoint import load_weights
from sparkdl.training.network_to_train import build_model
from tests.language_blocks import VOCABULARY, language_blocks

from .conftest import Training

STRATEGIES: list[dict[str, Any]] = [
    {"kind": "downpour", "rule": "sgd"},
    {"kind": "decoupled_diloco", "period": 2, "fragments": 2, "quorum": 1, "grace": 0},
    {"kind": "sandblaster"},
]
of_each_strategy = pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy["kind"])


def by_steps(strategy: dict[str, Any], rate: float) -> dict[str, Any]:
    """How to step, for strategies that do not find it out themselves."""
    return {} if strategy["kind"] == "sandblaster" else {"optimizer": "sgd", "learning_rate": rate}


class Bigrams(nn.Module):
    """What comes next follows from the token alone; in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(VOCABULARY, 8).double(), nn.Linear(8, VOCABULARY).double()

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.out(self.table(input_ids))
        return answer


class Deep(nn.Module):
    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(*input_shape, 16), nn.Linear(16, num_classes)
        # Not from PyTorch's generator, which threads of one process share.
        for parameter in self.parameters():
            parameter.detach().copy_(0.3 * torch.arange(1.0, parameter.numel() + 1).sin().view(parameter.shape))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.head(self.first(rows).relu())
        return answer


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return language_blocks(tmp_path_factory.mktemp("blocks"))


@of_each_strategy
def test_the_next_token_of_texts_in_blocks_is_learned(
    blocks: Dataset, tmp_path: Path, strategy: dict[str, Any]
) -> None:
    found = Training(blocks, tmp_path)(strategy, model=Bigrams, epochs=4, **by_steps(strategy, 2.0))
    first, *_, last = found.history
    assert last["validation_perplexity"] < first["validation_perplexity"]
    assert 0 <= last["train_accuracy"] <= 1


@of_each_strategy
def test_adapters_are_all_that_is_kept_of_a_network(clouds: Dataset, tmp_path: Path, strategy: dict[str, Any]) -> None:
    train = Training(clouds, tmp_path)
    recipe: dict[str, Any] = {"model": Deep, "epochs": 3, **by_steps(strategy, 0.02)}
    recipe["adapters"] = {"kind": "lora", "rank": 8, "targets": ["first"], "whole": ["head"]}
    found = train(strategy, **recipe)
    kept = load_weights(found.checkpoint)
    begun = full_state(build_model(clouds, train.settings(strategy, **recipe)))
    assert kept.keys() == begun.keys() and "first.base_layer.weight" not in kept
    assert not torch.equal(kept["head.weight"], begun["head.weight"])
    assert found.history[-1]["train_loss"] < found.history[0]["train_loss"]
