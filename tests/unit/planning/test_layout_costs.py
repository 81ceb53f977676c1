"""What is said of each layout before one is chosen."""

import torch
from torch import nn

from sparkdl.planning.cost import Link, Traffic
from sparkdl.planning.layout_costs import LayoutCost, LayoutCosts, costs_of_layouts
from sparkdl.settings import Train
from sparkdl.training.tasks import Classification

WIDTH, BATCH, CLASSES = 64, 16, 4
SETTINGS = Train(batch_size=BATCH, optimizer="adam")


def network() -> nn.Module:
    layers = [layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH, bias=False), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES, bias=False))


LAYER, LAST = 4 * WIDTH * WIDTH, 4 * WIDTH * CLASSES
"""Bytes of their weights."""
LINK = Link(start=0.001, bandwidth=1e6)
VALUES = 4 * BATCH * WIDTH
"""Bytes of what is between two layers, for the rows of a replica."""


def test_each_layout_of_so_many_ranks_has_its_memory_and_what_it_sends() -> None:
    found = costs_of_layouts(network(), torch.rand(2, WIDTH), SETTINGS, Classification(CLASSES), ranks=4)
    assert list(found.possible) == [
        *("{data: 4}", "{data: 2, tensor: 2}", "{data: 2, pipeline: 2}", "{data: 1, tensor: 4}"),
        "{data: 1, pipeline: 4}",
    ]
    assert not found.refused
    assert found.possible["{data: 4}"].traffic.bytes == 2 * (4 * LAYER + LAST) * 3 / 4
    # Two blocks of two layers: what each gives is added up, and the gradient of what the second one is given.
    assert found.possible["{data: 1, tensor: 4}"].traffic.bytes == 2 * 3 * VALUES * 3 / 4
    middle = found.possible["{data: 1, pipeline: 4}"]
    assert middle.traffic.bytes == 2 * VALUES  # a stage sends values to the next one, and gradients to the one before
    memory = [cost.memory for cost in found.possible.values()]
    assert memory[0] == max(memory) and memory[3] < memory[1]
    assert [cost.rows for cost in found.possible.values()] == [64, 32, 32, 16, 16]


def test_a_step_takes_what_a_rank_computes_and_what_it_sends() -> None:
    found = costs_of_layouts(network(), torch.rand(2, WIDTH), SETTINGS, Classification(CLASSES), ranks=2)
    whole = found.possible["{data: 2}"]
    assert whole.computing == 1 and whole.traffic == (2, 4 * LAYER + LAST)
    assert whole.seconds(LINK, 0.5) == 0.5 + 2 * LINK.start + whole.traffic.bytes / LINK.bandwidth
    # Of the eight parts of a batch, a rank waits for one more.
    stages = found.possible["{data: 1, pipeline: 2}"]
    assert stages.traffic == (8, VALUES) and stages.computing > 0
    assert found.possible["{data: 1, tensor: 2}"].traffic.messages == 3 * 2
    lines = found.table(LINK, 0.5).splitlines()
    assert lines[0].startswith("cluster.layout") and "ms a step" in lines[0]
    assert f"{1e3 * whole.seconds(LINK, 0.5):,.1f}" in lines[1] + lines[2]


def test_of_the_layouts_that_fit_the_one_is_named_that_learns_from_most_rows_a_second() -> None:
    cost = LayoutCost(rows=32, memory=1e9, computing=1.0, traffic=Traffic(0, 0))
    small = cost._replace(memory=5e8, computing=2.0)
    found = LayoutCosts({"{data: 2}": cost, "{data: 1, tensor: 2}": small}, {})
    assert found.advice(LINK, 1.0, room=2e9).endswith("most rows a second: cluster.layout={data: 2}")
    assert "each rank has 800 MB left" in found.advice(LINK, 1.0, room=8e8)
    assert found.advice(LINK, 1.0, room=8e8).endswith("cluster.layout={data: 1, tensor: 2}")
    assert "no layout fits: {data: 1, tensor: 2} takes 500 MB" in found.advice(LINK, 1.0, room=1e8)


def test_a_layout_that_is_not_possible_is_named_with_the_reason_once() -> None:
    normalised = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, CLASSES))
    found = costs_of_layouts(normalised, torch.rand(2, WIDTH), SETTINGS, Classification(CLASSES), ranks=4)
    assert "{data: 2, pipeline: 2}" in found.refused
    printed = found.table(LINK, 1.0)
    assert printed.count("torch.nn.GroupNorm") == 1
    assert "not {data: 2, pipeline: 2}, {data: 1, pipeline: 4}: cluster.layout.pipeline cuts batches" in printed


def test_looking_leaves_no_gradients_behind() -> None:
    model = network()
    costs_of_layouts(model, torch.rand(2, WIDTH), SETTINGS, Classification(CLASSES), ranks=2)
    assert all(parameter.grad is None for parameter in model.parameters())
