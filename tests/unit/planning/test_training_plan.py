"""What a plan says."""

import pytest

from sparkdl.planning.cost import Link, StepCost
from sparkdl.planning.growth import growth_figure
from sparkdl.planning.training_plan import TrainingPlan

MODEL = 24_000_000


def plan(bandwidth: float) -> TrainingPlan:
    strategies = {
        "allreduce": StepCost(0.1, MODEL),
        "allreduce, sign": StepCost(0.15, MODEL / 32, adds_up=False),
        "local_sgd, every 8 steps": StepCost(0.1, MODEL, period=8),
    }
    return TrainingPlan(4, Link(1e-4, bandwidth), MODEL, {"ring": 3.1, "server": 12.0}, strategies)


def test_a_slow_network_calls_for_another_strategy_and_a_fast_one_for_none() -> None:
    slow, fast = plan(12e6), plan(1e11)
    assert slow.best[0] == "allreduce, sign"
    assert "allreduce is fastest in topology butterfly: 3,1" in slow.advice
    assert "The shortest steps are those of allreduce, sign in topology ring: allreduce takes 9" in slow.advice
    assert "stay with allreduce" in fast.advice


def test_the_table_has_a_line_for_each_strategy_and_a_column_for_each_topology() -> None:
    lines = str(plan(12e6)).splitlines()
    assert lines[0].startswith("between 4 ranks: 100 µs to start a message, then 12 MB/s; a mean of the model's 24.0")
    assert lines[2].split()[-5:] == ["ring", "butterfly", "server", "sharded", "servers"]
    signs = lines[4].split()
    assert signs[:2] == ["allreduce,", "sign"] and signs[-3:] == ["-", "-", "-"]


def test_the_picture_shows_exchanges_and_steps_up_to_a_thousand_ranks() -> None:
    exchanges, steps = growth_figure(plan(12e6)).axes
    lines = {line.get_label(): line for line in exchanges.lines}
    assert lines["ring"].get_xdata()[-1] == 1024
    assert lines["server"].get_ydata()[-1] == pytest.approx(2 * 1023 * MODEL / 12e6, rel=0.01)
    points = [line for line in exchanges.lines if len(line.get_xdata()) == 1]
    assert [(line.get_xdata()[0], line.get_ydata()[0]) for line in points] == [(4, 3.1), (4, 12.0)]
    assert [line.get_label() for line in steps.lines] == list(plan(12e6).strategies)
