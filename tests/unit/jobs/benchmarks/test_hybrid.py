"""``jobs/benchmark.py hybrid``: what is trained, and what its table says."""

import pytest
import torch

from benchmarks.hybrid import NETWORK, report
from benchmarks.layout_plan import Step
from sparkdl.layouts import find_plan


def test_convolutions_are_computed_by_rows_and_both_wide_layers_are_cut() -> None:
    model = NETWORK.build()
    plan = find_plan(model, torch.zeros(2, NETWORK.width), 2)
    (block,) = plan.blocks
    assert block.units == 4096 and len(plan.front) == 4
    assert sum(parameter.nbytes for parameter in model.parameters()) > 100e6


def test_speeds_are_compared_for_the_same_rows() -> None:
    whole = Step("slow", "small", "allreduce", 100.0, 100.0, 128)
    table = report([whole, Step("slow", "small", "tensor: 2", 50.0, 40.0, 128)])
    assert [target.value for target in table.targets] == pytest.approx([2.5, 0.2])
    assert [row[4] for row in table.rows] == [1280, 3200]
    assert [target.reached for target in table.targets] == [True, False]
