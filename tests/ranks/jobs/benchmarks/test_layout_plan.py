"""``jobs/benchmark.py layout_plan``: what it predicts and measures of a layout, and what its table says."""

from functools import partial

import pytest
from torch import nn

from benchmarks.layout_plan import Step, measured_steps, report
from benchmarks.layout_subjects import Layout, Network
from benchmarks.layouts import on_this_machine


def build(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))


SMALL = Network("small", partial(build, 16), rows=8, width=16)


def test_each_layout_has_predicted_and_measured_milliseconds_of_the_same_rows_and_one_is_chosen() -> None:
    layouts = [Layout("allreduce", 2), Layout("tensor: 2", 2, tensor=2), Layout("pipeline: 2", 2, pipeline=2)]
    steps = measured_steps("this machine", SMALL, on_this_machine, layouts=layouts, steps=8)
    assert [(step.layout, step.rows) for step in steps] == [("allreduce", 16), ("tensor: 2", 16), ("pipeline: 2", 16)]
    assert all(step.predicted > 0 and step.measured > 0 for step in steps)
    (chosen,) = (step for step in steps if step.chosen)
    tried = [step for step in steps if step.tried]
    assert not tried or chosen in tried


@pytest.mark.parametrize(("predicted", "reached"), [((10.0, 20.0), [True] * 3), ((30.0, 10.0), [False] * 3)])
def test_the_order_of_layouts_and_the_one_that_is_chosen_are_compared(
    predicted: tuple[float, float], reached: list[bool]
) -> None:
    steps = [
        Step("here", "small", name, guess, measured, 8, chosen=guess == min(predicted))
        for name, guess, measured in zip("ab", predicted, (10.0, 20.0), strict=True)
    ]
    assert [target.reached for target in report(steps).targets] == reached
