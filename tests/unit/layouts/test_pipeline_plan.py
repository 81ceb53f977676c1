"""Where networks are cut into stages, and that the stages one after another answer as the whole network."""

import time
from itertools import accumulate, cycle
from typing import Any

import pytest
import torch
from torch import nn

from sparkdl.errors import ModelError
from sparkdl.layouts import PipelinePlan, find_stages
from sparkdl.layouts.network_graph import overwrites, trace
from sparkdl.layouts.pipeline_plan import _balanced
from sparkdl.settings import RankLayout
from sparkdl.training.checks.shared_replicas import tried_plan

ROWS = torch.randn(2, 6)
WORDS = {"input_ids": torch.arange(1, 15).view(2, 7), "attention_mask": torch.tensor([[1] * 7, [1] * 4 + [0] * 3])}


def layers(count: int) -> nn.Module:
    return nn.Sequential(*(layer for _ in range(count) for layer in (nn.Linear(6, 6), nn.ReLU(inplace=True))))


def transformer(kind: str) -> nn.Module:
    transformers: Any = pytest.importorskip("transformers")
    if kind == "gpt2":  # whose last layer is the first one's table
        config = transformers.GPT2Config(n_layer=3, n_embd=48, n_head=4, vocab_size=40, n_positions=16)
        network: nn.Module = transformers.GPT2LMHeadModel(config)
        return network
    config = transformers.BertConfig(num_hidden_layers=3, hidden_size=48, num_attention_heads=4, vocab_size=40)
    found: nn.Module = transformers.BertForSequenceClassification(config)
    return found


def test_the_slowest_stage_is_as_fast_as_it_can_be() -> None:
    seconds = [1.0, 1.0, 4.0, 1.0, 1.0, 1.0, 1.0]
    uses = list(range(8))
    assert _balanced([1, 2, 3, 4, 5, 6], [0.0] * 6, seconds, uses, 3) == (2, 3)
    assert _balanced([2, 4], [0.0] * 2, seconds, uses, 3) == (2, 4)


def test_of_two_places_the_one_is_taken_where_less_is_sent() -> None:
    assert _balanced([1, 2, 3], [5.0, 0.0, 5.0], [1.0, 2.0, 0.5, 2.0], [0, 1, 2, 3, 4], 2) == (2,)


def test_blocks_that_repeat_are_dealt_out_evenly_whatever_disturbs_the_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = time.perf_counter
    late = accumulate(cycle([0.0, 0.0, 0.0, 0.0, 5.0, 0.0, 0.0]))
    monkeypatch.setattr("time.perf_counter", lambda: clock() + next(late))
    # Wide, so that a layer takes longer than sending its values does: the last stage, which sends none, would get more.
    network = nn.Sequential(*(nn.Linear(512, 512) for _ in range(16)))
    assert find_stages(network, torch.randn(2, 512), 4, count=32) == (4, 8, 12)


def test_every_stage_has_parameters_to_learn() -> None:
    """Of two layers and a slow activation between them, three stages would leave one without."""
    seconds, uses = [1.0, 9.0, 1.0], [0, 1, 1, 2]
    assert _balanced([1, 2], [0.0] * 2, seconds, uses, 2) == (1,)
    graph = trace(layers(4), ROWS)
    for stages in (2, 3, 4):
        cuts = find_stages(layers(4), ROWS, stages, count=2)
        bounds = PipelinePlan(stages, cuts, 4, "1f1b", ROWS).bounds(len(graph.operations))
        assert all(graph.used_parameters(*each) for each in bounds)


@pytest.mark.parametrize("pipeline", [2, 3])
@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_stages_of_a_transformer_answer_as_all_of_it(kind: str, pipeline: int) -> None:
    plan = tried_plan(transformer(kind), WORDS, RankLayout(pipeline=pipeline), batch_size=16)
    assert isinstance(plan, PipelinePlan) and len(plan.cuts) == pipeline - 1
    assert plan.microbatches == 4 * pipeline


def test_what_depends_on_inputs_alone_is_not_sent() -> None:
    network = transformer("bert")
    graph = trace(network, WORDS)
    (cut,) = find_stages(network, WORDS, 2, count=4)
    assert all(node in graph.learned for node in graph.crossing(cut))
    masks = [node for node in graph.operations if getattr(node.meta["val"], "dtype", None) is torch.bool]
    assert masks and not graph.learned & set(masks)


def test_no_place_is_behind_what_is_overwritten_later() -> None:
    network = layers(4)
    graph = trace(network, ROWS)
    overwritten = {graph.number[node]: node.args[0] for node in graph.operations if overwrites(node)}
    assert len(overwritten) == 4
    for stages in (2, 3, 4):
        plan = tried_plan(network, ROWS, RankLayout(pipeline=stages), batch_size=2)
        assert isinstance(plan, PipelinePlan) and len(plan.cuts) == stages - 1
        for cut in plan.cuts:
            assert not {node for place, node in overwritten.items() if place >= cut} & {*graph.crossing(cut)}


class Otherwise(nn.Module):
    """A network that computes something else in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = layers(2)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layers(rows)
        return found if self.training else found.softmax(dim=1)


class ByValue(nn.Module):
    """What it does depends on what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = layers(2)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layers(rows) if rows.sum() > 0 else rows
        return found


class OfTwo(nn.Module):
    """A network whose code says how many rows there are."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = layers(2)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layers(rows.view(2, 6))
        return found


@pytest.mark.parametrize(
    ("network", "reason"),
    [
        (nn.Linear(6, 3), "the network can be cut into 1 stages with parameters at most, and 2 are asked for"),
        (nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)), "torch.nn.GroupNorm"),
        (Otherwise(), "would differ from those of the whole network"),
        (ByValue(), "cannot be traced"),
        (OfTwo(), "takes no other numbers of rows than 2"),
    ],
    ids=["one layer", "batch normalisation", "otherwise in evaluation", "by value", "batch size in its code"],
)
def test_what_cannot_be_staged_is_refused_with_the_reason(network: nn.Module, reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        tried_plan(network, ROWS, RankLayout(pipeline=2), batch_size=2)
