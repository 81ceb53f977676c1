"""What a plan says."""

from dataclasses import replace

import pytest

from sparkdl.planning.cost import Link, StepCost, Traffic
from sparkdl.planning.growth import growth_figure
from sparkdl.planning.layout_costs import LayoutCost, LayoutCosts
from sparkdl.planning.links import Links
from sparkdl.planning.training_plan import TrainingPlan
from sparkdl.settings import RankLayout

MODEL = 24_000_000


def plan(bandwidth: float, layouts: LayoutCosts | None = None) -> TrainingPlan:
    strategies = {
        "allreduce": StepCost(0.1, MODEL),
        "allreduce, sign": StepCost(0.15, MODEL / 32, adds_up=False),
        "local_sgd, every 8 steps": StepCost(0.1, MODEL, period=8),
    }
    link = Link(1e-4, bandwidth)
    return TrainingPlan(
        ranks=4,
        links=Links.of_one_host(link, ranks=4),
        model_bytes=MODEL,
        measured={"ring": 3.1, "server": 12.0},
        measured_by=4,
        link=link,
        strategies=strategies,
        layouts=layouts,
    )


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
    whole = LayoutCost(RankLayout(data=4), 32, 1e9, 1.0, Traffic(0, 0), MODEL)
    shared = LayoutCost(RankLayout(data=1, tensor=4), 32, 5e8, 0.3, Traffic(6, 1e6), MODEL / 4)
    layouts = LayoutCosts({"{data: 4}": whole, "{data: 1, tensor: 4}": shared}, {}, {}, seconds=0.1)
    exchanges, steps, speeds = growth_figure(plan(12e6, layouts)).axes
    lines = {line.get_label(): line for line in exchanges.lines}
    assert lines["ring"].get_xdata()[-1] == 1024
    assert lines["server"].get_ydata()[-1] == pytest.approx(2 * 1023 * MODEL / 12e6, rel=0.01)
    points = [line for line in exchanges.lines if len(line.get_xdata()) == 1]
    assert [(line.get_xdata()[0], line.get_ydata()[0]) for line in points] == [(4, 3.1), (4, 12.0)]
    assert [line.get_label() for line in steps.lines] == list(plan(12e6).strategies)
    speed = {line.get_label(): line for line in speeds.lines}
    assert list(speed) == ["whole replicas", "tensor: 4"]
    assert speed["tensor: 4"].get_xdata()[0] == 4 and speed["tensor: 4"].get_xdata()[-1] == 1024


def test_a_plan_for_other_hosts_says_what_it_assumes() -> None:
    here = plan(1e9)
    there = replace(here, ranks=64, links=Links(here.link, Link(1e-4, 1.25e9), ranks_of_host=8))
    assert "predicted for 64 ranks on 8 hosts, between which 10,000 Mbit/s are assumed" in there.table
    assert "assumed" not in here.table
    assert there.seconds("allreduce") > here.seconds("allreduce")


def test_what_a_whole_replica_computes_is_known_where_none_fits() -> None:
    layouts = LayoutCosts({}, {}, {}, seconds=0.7)
    assert plan(1e9, layouts).whole == 0.1
    sharded = {"allreduce, shard: all": StepCost(0.2, MODEL)}
    assert replace(plan(1e9, layouts), strategies=sharded).whole == 0.2
    assert replace(plan(1e9, layouts), strategies={}).whole == 0.7
