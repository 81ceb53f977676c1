"""What is said of each layout before one is chosen."""

import pytest
import torch
from torch import nn

from sparkdl.models.experts import mixture_of_experts
from sparkdl.planning.cores import Cores
from sparkdl.planning.cost import Link
from sparkdl.planning.layout_costs import costs_of_layouts
from sparkdl.planning.links import Links
from sparkdl.settings import RankLayout, Train
from sparkdl.training.tasks import Classification

WIDTH, BATCH, CLASSES = 64, 16, 4
SETTINGS = Train(batch_size=BATCH, optimizer="adam")


def network() -> nn.Module:
    layers = [layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH, bias=False), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES, bias=False))


LAYER, LAST = 4 * WIDTH * WIDTH, 4 * WIDTH * CLASSES
"""Bytes of their weights."""
CORES = Cores(threads=1)
LINK = Link(start=0.001, bandwidth=1e6)
LINKS = Links.of_one_host(LINK, 4)
VALUES = 4 * BATCH * WIDTH
"""Bytes of what is between two layers, for the rows of a replica."""


def test_each_layout_of_so_many_ranks_has_its_memory_and_what_it_sends() -> None:
    found = costs_of_layouts(
        network(), torch.rand(2, WIDTH), SETTINGS, Classification(CLASSES), ranks=4, cores=CORES, links=LINKS
    )
    assert list(found.possible) == [
        *("{data: 4}", "{data: 2, tensor: 2}", "{data: 2, pipeline: 2}", "{data: 1, tensor: 4}"),
        *("{data: 1, tensor: 4} from 4 on", "{data: 1, pipeline: 4}", "{data: 1, tensor: 2, pipeline: 2}"),
    ]
    assert not found.refused
    assert found.possible["{data: 4}"].traffic.bytes == 2 * (4 * LAYER + LAST) * 3 / 4
    # Two blocks of two layers: what each gives is added up, and the gradient of what the second one is given. The one
    # replica computes the batches of four.
    assert found.possible["{data: 1, tensor: 4}"].traffic.bytes == 4 * 2 * 3 * VALUES * 3 / 4
    middle = found.possible["{data: 1, pipeline: 4}"]
    # A stage sends values to the next one, and gradients to the one before.
    assert middle.traffic.bytes == 4 * 2 * VALUES
    memory = [cost.memory for cost in found.possible.values()]
    assert memory[0] == max(memory) and memory[3] < memory[1]
    assert [cost.batches for cost in found.possible.values()] == [1, 2, 2, 4, 4, 4, 4]
    assert {cost.rows for cost in found.possible.values()} == {64}


def test_ranks_of_a_stage_have_half_of_it_and_add_up_what_its_blocks_give() -> None:
    layouts = costs_of_layouts(
        network(), torch.rand(2, WIDTH), SETTINGS, Classification(CLASSES), ranks=4, cores=CORES, links=LINKS
    ).possible
    stages, halves = layouts["{data: 2, pipeline: 2}"], layouts["{data: 1, tensor: 2, pipeline: 2}"]
    assert halves.memory < stages.memory and halves.shared == stages.shared.times(2)
    # Of eight parts of each of four batches, and of the one that is waited for: one sum of values at least, and one of
    # gradients.
    assert 4 * VALUES * 9 / 8 < halves.stage_sums.bytes <= 4 * 2 * VALUES * 9 / 8
    assert halves.seconds(LINKS, 0.0) > stages._replace(layout=halves.layout).seconds(LINKS, 0.0)


def test_of_convolutions_a_rank_computes_its_rows_and_sends_their_values_and_its_share_of_gradients() -> None:
    convolutions = nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.ReLU(), nn.MaxPool2d(2)
    wide = nn.Linear(2 * WIDTH, WIDTH, bias=False), nn.ReLU(), nn.Linear(WIDTH, CLASSES, bias=False)
    model = nn.Sequential(*convolutions, nn.Flatten(), *wide)
    found = costs_of_layouts(
        model, torch.rand(2, WIDTH), SETTINGS, Classification(CLASSES), ranks=4, cores=CORES, links=LINKS
    ).possible
    values, answers, front, parts = 2 * VALUES, 4 * BATCH * CLASSES, 4 * 8 * 9, (2 * LAYER + LAST) / 2
    # Values there and their gradients back, what the block gives, the convolutions' gradients of all ranks.
    assert found["{data: 1, tensor: 4}"].traffic.bytes == 2 * 3 / 4 * (4 * (values + answers) + front)
    assert found["{data: 2, tensor: 2}"].traffic.bytes == 2 * (values + answers) + 2 * 3 / 4 * front + parts
    whole = found["{data: 4}"].memory
    assert whole > found["{data: 2, tensor: 2}"].memory > found["{data: 1, tensor: 4}"].memory


def test_a_step_takes_what_a_rank_computes_and_what_it_sends() -> None:
    found = costs_of_layouts(
        network(), torch.rand(2, WIDTH), SETTINGS, Classification(CLASSES), ranks=2, cores=CORES, links=LINKS
    )
    whole = found.possible["{data: 2}"]
    assert whole.computing == 1 and whole.traffic == (2, 4 * LAYER + LAST)
    links = Links.of_one_host(LINK, ranks=2)
    assert whole.seconds(links, 0.5) == 0.5 + 2 * LINK.start + whole.traffic.bytes / LINK.bandwidth
    # Of the eight parts of each of two batches, a rank waits for one more.
    stages = found.possible["{data: 1, pipeline: 2}"]
    assert stages.traffic == (0, 2 * VALUES) and stages.computing > 0  # the start of messages is in the turns
    sent = 2 * VALUES / LINK.bandwidth
    assert stages._replace(computing=1.0).seconds(links, 0.5) == pytest.approx(0.5 + sent / 8)
    assert stages._replace(computing=1.0).seconds(links, 0.0) == pytest.approx(sent)  # a link that is the limit
    assert found.possible["{data: 1, tensor: 2}"].traffic.messages == 2 * 3 * 2


def test_a_pipeline_takes_as_many_turns_as_there_are_microbatches_and_one_for_each_stage_that_is_waited_for() -> None:
    cores = Cores(threads=1, turn=0.01)
    found = costs_of_layouts(
        *(network(), torch.rand(2, WIDTH), SETTINGS, Classification(CLASSES)), ranks=2, cores=cores, links=LINKS
    ).possible
    stages = found["{data: 1, pipeline: 2}"]
    assert stages.turns == pytest.approx(2 * (8 + 1) * 0.01)
    assert stages.seconds(LINKS, 0.5) == pytest.approx(stages._replace(turns=0).seconds(LINKS, 0.5) + stages.turns)
    assert found["{data: 2}"].turns == found["{data: 1, tensor: 2}"].turns == 0


def test_on_more_ranks_there_are_more_replicas_that_are_shared_as_before() -> None:
    found = costs_of_layouts(
        network(), torch.rand(2, WIDTH), SETTINGS, Classification(CLASSES), ranks=2, cores=CORES, links=LINKS
    )
    shared = found.possible["{data: 1, tensor: 2}"]
    many = shared.on(64)
    assert (many.layout.data, many.layout.tensor, many.rows) == (32, 2, 64 * BATCH)
    assert (many.shared, many.memory, many.computing) == (shared.shared, shared.memory, shared.computing)
    links = Links.of_one_host(LINK, ranks=64)
    averaging = many.seconds(links, 0.5) - shared.seconds(links, 0.5)
    assert averaging == pytest.approx(links.between_replicas(shared.gradients, 32))


def test_experts_are_shared_where_there_are_some() -> None:
    options = {"width": 32, "experts": 4, "hidden": 64, "layers": 2}
    model = mixture_of_experts(input_shape=(WIDTH,), num_classes=CLASSES, **options)
    found = costs_of_layouts(
        model, torch.rand(2, WIDTH), SETTINGS, Classification(CLASSES), ranks=4, cores=CORES, links=LINKS
    )
    whole, shared = found.possible["{data: 4}"], found.possible["{data: 1, experts: 4}"]
    assert "cluster.layout.pipeline" in found.refused["{data: 2, pipeline: 2}"]
    assert shared.rows == whole.rows == 4 * BATCH
    experts = 2 * 4 * 4 * (2 * 32 * 64 + 32 + 64)
    assert shared.gradients == experts / 4 and shared.common_gradients == whole.gradients - experts
    assert whole.memory - shared.memory == pytest.approx(experts * 3 / 4 * 4)  # with gradients and two moments
    # Each row goes to two experts, and back, twice, in each of two layers: three of four to another rank.
    assert shared.shared == (4 * 3 * 2, 4 * 2 * (4 * 2 * BATCH * 32) * 3 / 4)
    assert shared.on(16).layout == RankLayout(data=4, experts=4)


def test_a_layout_that_is_not_possible_has_a_reason() -> None:
    normalised = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, CLASSES))
    found = costs_of_layouts(
        normalised, torch.rand(2, WIDTH), SETTINGS, Classification(CLASSES), ranks=4, cores=CORES, links=LINKS
    )
    reasons = {found.refused[name] for name in ("{data: 2, pipeline: 2}", "{data: 1, pipeline: 4}")}
    (reason,) = reasons
    assert reason.startswith("cluster.layout.pipeline cuts batches") and "torch.nn.GroupNorm" in reason


def test_looking_leaves_no_gradients_behind() -> None:
    model = network()
    costs_of_layouts(model, torch.rand(2, WIDTH), SETTINGS, Classification(CLASSES), ranks=2, cores=CORES, links=LINKS)
    assert all(parameter.grad is None for parameter in model.parameters())
