"""Which blocks ranks compute by rows, and from which one on they share them by units."""

import pytest
import torch
from torch import nn

from sparkdl.layouts import TensorPlan, exchanged_bytes, find_plan
from sparkdl.planning.cores import Cores
from sparkdl.planning.cost import Link, exchange, gathered, together
from sparkdl.planning.layout_choice import Choice
from sparkdl.planning.layout_costs import costs_of_layouts
from sparkdl.planning.layout_names import layout_name
from sparkdl.planning.leading_blocks import plans_with_whole_blocks
from sparkdl.planning.links import Links
from sparkdl.settings import RankLayout, Train
from sparkdl.settings.strategies import AllReduceOptions
from sparkdl.training.checks.shared_replicas import tried_plan
from sparkdl.training.tasks import Classification

TOKENS, WIDTH, CLASSES, BATCH = 64, 16, 4, 8
ROWS = torch.rand(2, TOKENS * WIDTH)
LINK = Link(start=0.0, bandwidth=1e6)
LINKS = Links.of_one_host(LINK, 4)


def block(inputs: int, hidden: int, outputs: int) -> list[nn.Module]:
    return [nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs)]


def narrow_then_wide() -> nn.Sequential:
    """Two blocks for each of many tokens, then one for all of them together."""
    first = [*block(WIDTH, 2 * WIDTH, WIDTH), *block(WIDTH, 2 * WIDTH, WIDTH)]
    return nn.Sequential(nn.Unflatten(1, (TOKENS, WIDTH)), *first, nn.Flatten(), *block(TOKENS * WIDTH, 32, CLASSES))


FROM_WIDE = {"8": "colwise", "10": "rowwise"}


def plans(network: nn.Module, layout: RankLayout, links: Links = LINKS) -> list[dict[str, str]]:
    cut = find_plan(network, ROWS, layout.tensor)
    return [*plans_with_whole_blocks(network, ROWS, cut, layout, batch=BATCH, batches=1, links=links)]


def test_blocks_with_more_activations_than_weights_are_left_whole() -> None:
    assert plans(narrow_then_wide(), RankLayout(tensor=4))[0] == FROM_WIDE
    assert plans(narrow_then_wide(), RankLayout(data=2, tensor=2))[0] == FROM_WIDE


def test_blocks_with_more_weights_are_not() -> None:
    wide = nn.Sequential(*block(ROWS.shape[1], 256, 256), *block(256, 256, 256), *block(256, 256, CLASSES))
    assert plans(wide, RankLayout(tensor=4)) == []


def test_it_counts_what_such_a_plan_exchanges() -> None:
    """The first block of all is entered by rows of the dataset, which have no gradients."""
    network, ranks = narrow_then_wide(), 2
    found = tried_plan(network, ROWS, RankLayout(tensor=ranks, plan=FROM_WIDE), batch_size=2)
    assert isinstance(found, TensorPlan)
    assert found.front == tuple(name for name, _ in network.named_parameters() if name.split(".")[0] in "1346")
    sent = exchanged_bytes(network, found, ROWS)
    values = 4 * 2 * TOKENS * WIDTH
    assert (sent.sums, sent.shares) == ([4 * 2 * CLASSES], 2 * [values // ranks])


def test_the_planner_compares_it_with_the_plan_that_cuts_all_blocks() -> None:
    settings = Train(batch_size=BATCH)
    found = costs_of_layouts(
        *(narrow_then_wide(), ROWS, settings, Classification(CLASSES)), ranks=2, cores=Cores(1), links=LINKS
    )
    cut, by_rows = (found.possible[f"{{data: 1, tensor: 2}}{end}"] for end in ("", " from 8 on"))
    values, answers = 4 * BATCH * TOKENS * WIDTH, 4 * BATCH * CLASSES
    front = 4 * 2 * (2 * 2 * WIDTH * WIDTH + 3 * WIDTH)
    shared = together([exchange(answers, 2), *2 * [exchange(values / 2, 2, gathered)]])
    assert by_rows.shared == shared.times(2) and by_rows.common_gradients == front
    assert cut.shared.bytes > 2 * by_rows.traffic.bytes
    assert found.plans[layout_name(by_rows.layout)] != found.plans[layout_name(cut.layout)]
    choice = Choice(by_rows.layout, AllReduceOptions(), predicted=1.0, rows=16, memory=0, sent=0)
    assert choice.name == "{data: 1, tensor: 2} from 8 on"
    assert choice.overrides == "\"cluster.layout={data: 1, tensor: 2, plan: {'8': colwise, '10': rowwise}}\""


def test_an_embedding_that_is_cut_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparkdl.layouts.tensor_plan.LARGE_TABLE", 1)
    words = nn.Sequential(nn.Embedding(50, 8), *block(8, 16, 8), nn.Flatten(), *block(8 * TOKENS, 32, CLASSES))
    rows = torch.zeros(2, TOKENS, dtype=torch.long)
    cut = find_plan(words, rows, 2)
    assert cut.embeddings
    assert plans_with_whole_blocks(words, rows, cut, RankLayout(tensor=2), batch=8, batches=1, links=LINKS) == []
