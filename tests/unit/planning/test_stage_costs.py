"""What the ranks of a pipeline are said to take in a step."""

from typing import Literal

import pytest
import torch
from torch import nn

from sparkdl.layouts import PipelinePlan
from sparkdl.planning.cores import Cores
from sparkdl.planning.memory import memory_of_rank
from sparkdl.planning.stage_costs import seconds_of_turns, stages_of_ranks
from sparkdl.settings import Train

WIDTH, LAYERS, ROWS = 64, 8, torch.rand(2, 64)
LAYER = (WIDTH + 1) * WIDTH * 4  # bytes
SETTINGS = Train(strategy={"kind": "allreduce"}, optimizer="adam")


def network() -> nn.Module:
    return nn.Sequential(*(each for _ in range(LAYERS) for each in (nn.Linear(WIDTH, WIDTH), nn.ReLU())))


def plan(schedule: Literal["1f1b", "gpipe", "interleaved"]) -> PipelinePlan:
    return PipelinePlan(2, (4, 8, 12) if schedule == "interleaved" else (8,), 4, schedule, ROWS)


@pytest.mark.parametrize(("schedule", "passes"), [("1f1b", 2), ("gpipe", 4), ("interleaved", 2.5)])
def test_each_rank_has_half_of_the_layers_and_the_activations_of_some_microbatches(
    schedule: Literal["1f1b", "gpipe", "interleaved"], passes: float
) -> None:
    first, second = stages_of_ranks(network(), ROWS, SETTINGS, plan(schedule), replicas=1, batch=40)
    found = first.memory
    half = LAYERS // 2 * LAYER
    assert (found.weights, found.gradients, found.moments) == (half, half, 2 * half)
    whole = memory_of_rank(network(), ROWS, SETTINGS, ranks=1, batch=10).activations
    assert found.activations == pytest.approx(passes * whole / 2, rel=0.2)
    values = 4 * 10 * WIDTH * 4  # of all microbatches, between two stages
    assert found.travelling == values * (3 if schedule == "interleaved" else 1)
    assert (first.sent.bytes, second.sent.bytes) == (
        (3 * values, 3 * values) if schedule == "interleaved" else (values, values)
    )


def test_gradients_of_several_replicas_are_copied_to_travel() -> None:
    one, two = (
        stages_of_ranks(network(), ROWS, SETTINGS, plan("1f1b"), replicas=count, batch=40)[0].memory.travelling
        for count in (1, 2)
    )
    assert two > one


def test_where_ranks_share_cores_those_that_wait_for_a_stage_leave_theirs_to_others() -> None:
    of_ranks, parts, waiting = [1.0, 3.0], 8, 1.0
    assert seconds_of_turns(of_ranks, parts, waiting, Cores(threads=1)) == 9 * 3
    assert seconds_of_turns(of_ranks, parts, waiting, Cores(threads=1, slowdown=1.5)) == 9 * 3 / 1.5
    assert seconds_of_turns(of_ranks, parts, waiting, Cores(threads=1, slowdown=4.0)) == 8 * 2
