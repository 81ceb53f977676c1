"""The tables and the picture of a small stored result."""

import math
from pathlib import Path

import pytest

from benchmarks.communication.laboratory import predict
from benchmarks.communication.methods import METHODS, RATES
from benchmarks.communication.picture import accuracy_over_seconds
from benchmarks.communication.results import Results
from benchmarks.communication.table import confirmations, exchanges, methods_on_links
from sparkdl import Train
from sparkdl.planning.cost import Link, StepCost


@pytest.fixture
def results() -> Results:
    return Results.model_validate_json(Path(__file__).with_name("results.json").read_text())


def test_steps_to_the_target_are_those_of_the_median_seed(results: Results) -> None:
    all_reduce, local, signs = results.methods
    assert all_reduce.steps_to(0.87) == [200, 400, 200] and all_reduce.median_steps_to(0.87) == 200
    assert signs.steps_to(0.87) == [None, 400, None] and signs.median_steps_to(0.87) is None
    assert (results.near_the_best, local.median_steps_to(0.875)) == (pytest.approx(0.875), 400)


def test_each_row_multiplies_steps_by_the_seconds_of_its_link(results: Results) -> None:
    report = methods_on_links(results)
    cells = [dict(zip(report.columns, row, strict=True)) for row in report.rows]
    assert [(row["link"], row["method"]) for row in cells[:3]] == [
        ("100 Mbit/s", name) for name in ("all-reduce", "local SGD, 32 steps", "signs")
    ]
    assert [row[4] for row in report.rows[:3]] == [pytest.approx(200 * 3.1), pytest.approx(200 * 0.2), "-"]
    assert cells[1]["all-reduce takes, times"] == pytest.approx(15.5)
    assert cells[4]["all-reduce takes, times"] == pytest.approx(200 * 0.4 / (200 * 0.11))
    assert cells[0]["steps to 87.0%"] == "200 (200 to 400)"
    assert cells[2]["steps to 87.0%"] == "- (400 to -)"


def test_the_cost_model_is_held_against_what_was_measured(results: Results) -> None:
    error, order, clear_order, lost = methods_on_links(results).targets
    assert error.value == pytest.approx(0.0527, abs=0.001) and error.reached
    assert order.value == clear_order.value == 1.0
    assert lost.value == pytest.approx(2.9) and not lost.reached
    results.methods[1].links["100 Mbit/s"].predicted = 1.0
    assert [target.value for target in methods_on_links(results).targets[1:3]] == [0.75, 0.75]


def test_no_link_is_predicted_to_be_faster_than_one_without_a_limit() -> None:
    cost = StepCost(computing=0.1, payload=12e6, period=10)
    assert predict(Link(start=0.0, bandwidth=12e6), 0.105, cost) == pytest.approx(0.1 + 1.5 / 10)
    assert predict(Link(start=0.0, bandwidth=math.inf), 0.105, cost) == 0.105


def test_methods_that_take_about_as_long_may_come_in_any_order(results: Results) -> None:
    first, second = (found.links["100 Mbit/s"] for found in results.methods[:2])
    second.seconds, second.predicted = first.seconds * 1.05, first.predicted / 2
    order, clear_order = methods_on_links(results).targets[1:3]
    assert order.value < clear_order.value == 1.0


def test_whole_runs_stand_beside_their_products(results: Results) -> None:
    assert confirmations(results).rows == [["local SGD, 32 steps", "100 Mbit/s", "200", 41.0, 40.0, 1.025]]


def test_two_levels_are_compared_with_a_ring_on_the_same_hosts(results: Results) -> None:
    report = exchanges(results)
    assert report.rows[1:] == [["2", "ring", 8.4, 1.06, "-"], ["2", "two levels", 8.4, 0.71, 0.7]]
    assert report.targets[0].value == pytest.approx(1.06 / 0.71)


def test_the_picture_has_a_panel_for_each_link_and_a_curve_for_each_method(results: Results) -> None:
    figure = accuracy_over_seconds(results)
    slow, fast = figure.axes
    ends = {line.get_label(): line.get_xdata()[-1] for line in slow.lines if not line.get_label().startswith("_")}
    assert ends == {"all-reduce": 1240.0, "local SGD, 32 steps": 80.0, "signs": pytest.approx(144.0)}
    assert "local SGD, 32 steps: 15.5 times faster" in [text.get_text() for text in slow.texts]
    assert "local SGD, 32 steps: 3.64 times faster" in [text.get_text() for text in fast.texts]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_each_method_is_one_that_training_knows_and_tries_as_many_rates(method) -> None:
    settings = Train(strategy=method.strategy, optimizer="sgd", optimizer_options=method.optimizer)
    assert method.cycle == getattr(settings.strategy, "period", 1)
    assert len(method.rates(3)) == 3 and len(RATES) >= 3
