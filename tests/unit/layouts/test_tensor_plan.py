"""What is found to be cut in networks, and that ranks which share it answer as the whole network."""

import re
from typing import Any

import pytest
import torch
from torch import nn

from sparkdl.errors import ModelError
from sparkdl.layouts import Cuts, TensorPlan, find_plan
from sparkdl.layouts.tensor_plan import CutBlock
from sparkdl.models import networks
from sparkdl.settings import RankLayout
from sparkdl.training.checks.shared_replicas import tried_plan

ROWS = torch.randn(2, 6)
WORDS = {"input_ids": torch.arange(1, 15).view(2, 7), "attention_mask": torch.tensor([[1] * 7, [1] * 4 + [0] * 3])}


def stack(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers)


def test_layers_of_a_perceptron_are_cut_in_pairs() -> None:
    network = networks.mlp(input_shape=(6,), num_classes=3, hidden=[10, 9, 8, 7])
    plan = tried_plan(network, ROWS, RankLayout(tensor=3), batch_size=2)
    assert plan == TensorPlan(3, (CutBlock(("1",), "3", 10), CutBlock(("5",), "7", 8)))


def test_a_block_with_a_hundredth_of_the_weights_is_computed_by_each_rank() -> None:
    network = stack(*(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6)), *(nn.Linear(6, 999), nn.ReLU(), nn.Linear(999, 6)))
    assert [block.row for block in tried_plan(network, ROWS, RankLayout(tensor=2), batch_size=2).blocks] == ["5"]


def transformer(kind: str) -> nn.Module:
    transformers: Any = pytest.importorskip("transformers")
    sizes = {"num_hidden_layers": 2, "hidden_size": 48, "num_attention_heads": 6, "intermediate_size": 50}
    if kind == "llama":
        config = transformers.LlamaConfig(**sizes, num_key_value_heads=3, vocab_size=40, pad_token_id=0)
    else:
        config = transformers.BertConfig(**sizes, vocab_size=40, attention_probs_dropout_prob=0.0)
    network: nn.Module = transformers.AutoModelForSequenceClassification.from_config(config)
    return network


@pytest.mark.parametrize(("kind", "columns"), [("bert", 1), ("llama", 2)])
@pytest.mark.parametrize("ranks", [2, 3])
def test_attention_is_cut_by_heads_and_what_follows_by_neurons(kind: str, columns: int, ranks: int) -> None:
    plan = tried_plan(transformer(kind), WORDS, RankLayout(tensor=ranks), batch_size=2)
    assert [len(block.columns) for block in plan.blocks] == 2 * [3, columns]
    assert [block.units for block in plan.blocks] == 2 * [6 if kind == "bert" else 3, 50]


def test_a_block_of_pytorchs_transformers_answers_as_a_whole_in_evaluation_too() -> None:
    """A fused kernel computes it there, from the weights and past the layers."""
    block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    plan = tried_plan(block, torch.randn(2, 5, 8), RankLayout(tensor=2), batch_size=2)
    assert plan == TensorPlan(2, (CutBlock(("linear1",), "linear2", 16),))


def test_a_large_table_is_cut_by_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparkdl.layouts.tensor_plan.LARGE_TABLE", 40 * 48)
    network = transformer("bert")
    plan = tried_plan(network, WORDS, RankLayout(tensor=3), batch_size=2)
    assert "bert.embeddings.word_embeddings" in plan.embeddings
    cuts = Cuts.of(network, plan)
    rows = [cuts.regions(rank)["bert.embeddings.word_embeddings.weight"].indices for rank in range(3)]
    assert torch.equal(torch.cat(rows), torch.arange(40))


class TwoHeads(nn.Module):
    """Attention whose number of heads is written in its code."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(6, 24), nn.Linear(24, 3)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        heads = self.enter(rows).view(-1, 2, 12).transpose(0, 1)
        answer: torch.Tensor = self.leave(heads.transpose(0, 1).reshape(-1, 24))
        return answer


class Twice(nn.Module):
    """What is between two layers is used elsewhere, too."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        inner = self.enter(rows).relu()
        answer: torch.Tensor = self.leave(inner) + inner.mean(dim=1, keepdim=True)
        return answer


@pytest.mark.parametrize(
    ("network", "reason"),
    [
        (stack(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3)), "layer_norm before '2' needs all values at once"),
        (stack(nn.Linear(6, 8), nn.Softmax(dim=1), nn.Linear(8, 3)), "softmax before '2' needs all values at once"),
        (stack(nn.Linear(6, 8), nn.Dropout(0.1), nn.Linear(8, 3)), "there is dropout before '2'"),
        (stack(nn.Linear(6, 1), nn.ReLU(), nn.Linear(1, 3)), "'2' has 1 units before it, fewer than 2 ranks"),
        (stack(nn.Linear(6, 3)), "no layer that can be cut leads to '0'"),
        (Twice(), "the input of 'leave' is also used by mean"),
        (nn.Flatten(), "no torch.nn.Linear"),
        (TwoHeads(), "write -1 in place of that number"),
    ],
    ids=["norm", "softmax", "dropout", "narrow", "one layer", "used twice", "no layer", "heads in its code"],
)
def test_what_cannot_be_cut_is_refused_with_the_reason(network: nn.Module, reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        tried_plan(network, ROWS, RankLayout(tensor=2), batch_size=2)


PAIRS = stack(*(layer for width in (10, 9, 8, 7) for layer in (nn.LazyLinear(width), nn.ReLU())), nn.LazyLinear(3))
PAIRS(ROWS)


def test_a_given_plan_cuts_the_layers_that_it_names() -> None:
    plan = {"2": "colwise", "4": "rowwise"}
    assert tried_plan(PAIRS, ROWS, RankLayout(tensor=2, plan=plan), batch_size=2).blocks == (CutBlock(("2",), "4", 9),)


def test_names_of_a_given_plan_may_stand_for_many_as_in_those_of_transformers() -> None:
    feed_forward = {"*.intermediate.dense": "colwise", "*.layer.?.output.dense": "rowwise"}
    table = {"bert.embeddings.word_embeddings": "rowwise"}
    found = tried_plan(transformer("bert"), WORDS, RankLayout(tensor=2, plan=feed_forward | table), batch_size=2)
    layers = [f"bert.encoder.layer.{number}" for number in range(2)]
    assert [block.layers for block in found.blocks] == [
        (f"{layer}.intermediate.dense", f"{layer}.output.dense") for layer in layers
    ]
    assert found.embeddings == ("bert.embeddings.word_embeddings",)


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (
            {"9": "colwise"},
            "no torch.nn.Linear or Embedding with a weight of its own has the name '9'. There are 0, 2, 4, 6, 8",
        ),
        ({"2": "colwise"}, "'2' is cut by colwise, and no layer that takes its outputs is cut by rowwise"),
        ({"4": "rowwise"}, "'4' is cut by rowwise, so the layer before it, '2', has to be cut by colwise"),
        ({"0": "rowwise"}, "no layer that can be cut leads to '0'"),
    ],
)
def test_a_given_plan_that_does_not_fit_is_refused_with_the_reason(plan: Any, reason: str) -> None:
    with pytest.raises(ModelError, match=re.escape(f"cluster.layout.plan does not fit the network: {reason}")):
        tried_plan(PAIRS, ROWS, RankLayout(tensor=2, plan=plan), batch_size=2)


def test_a_weight_that_two_layers_share_is_not_cut() -> None:
    network = stack(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))
    network[2].weight = network[0].weight
    with pytest.raises(ModelError, match="nothing to cut"):
        find_plan(network, ROWS, 2)
