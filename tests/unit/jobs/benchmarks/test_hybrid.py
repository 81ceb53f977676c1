"""``jobs/benchmark.py hybrid``: what is trained, and what its table says."""

import pytest
import torch

from benchmarks.hybrid import FROM_WIDE, SUBJECTS, report
from benchmarks.layout_plan import Step
from sparkdl.layouts import find_plan

(CONVOLUTIONS, _), (TRANSFORMER, _) = SUBJECTS


def test_convolutions_are_computed_by_rows_and_both_wide_layers_are_cut() -> None:
    model = CONVOLUTIONS.build()
    plan = find_plan(model, torch.zeros(2, CONVOLUTIONS.width), 2)
    (block,) = plan.blocks
    assert block.units == 4096 and len(plan.front) == 4
    assert sum(parameter.nbytes for parameter in model.parameters()) > 100e6


def test_blocks_of_a_transformer_are_cut_or_computed_by_rows() -> None:
    model, rows = TRANSFORMER.build(), torch.rand(2, TRANSFORMER.width)
    cut, by_rows = find_plan(model, rows, 2), find_plan(model, rows, 2, FROM_WIDE.plan)
    assert [len(plan.blocks) for plan in (cut, by_rows)] == [3, 1]
    assert not cut.front and len(by_rows.front) == len(list(model.parameters())) - 4


def test_speeds_are_compared_with_that_of_whole_replicas() -> None:
    whole = Step("slow", "small", "allreduce", 100.0, 100.0, 128)
    hybrid = Step("slow", "small", "tensor: 2", 50.0, 40.0, 128, chosen=True)
    table = report([[whole, hybrid]])
    assert [target.value for target in table.targets] == pytest.approx([2.5, 0.2])
    assert [target.reached for target in table.targets] == [True, False]
    assert [row[5:] for row in table.rows] == [[1280, ""], [3200, "yes"]]
