"""The tables of made-up results, and the network that is slow on one process."""

from pathlib import Path

import pytest
import torch
from torch.nn import functional

from benchmarks.asynchronous import backups, coming_and_going, race, regression, transport, words
from benchmarks.asynchronous.coming_and_going import CoursePoint, Executors, Phase
from benchmarks.asynchronous.experiment import PARTS, Results
from benchmarks.asynchronous.race import ADAGRAD, ALL_REDUCE, FIXED, METHODS, SANDBLASTER, Race, Run
from benchmarks.asynchronous.slowed import Slowed, slowed
from sparkdl import Train


def run_of(method: str, seconds: float, *accuracies: float, slowed: bool = False) -> Run:
    ends = [seconds * (1 + number) for number in range(len(accuracies))]
    return Run(method=method, slowed=slowed, seconds=ends, accuracies=accuracies, test=accuracies[-1] - 0.01)


@pytest.fixture
def found() -> Race:
    runs = [
        run_of(ALL_REDUCE, 10, 0.80, 0.86, 0.88),
        run_of(ALL_REDUCE, 12, 0.80, 0.86, 0.88),
        run_of(ALL_REDUCE, 30, 0.80, 0.865, slowed=True),
        run_of(ALL_REDUCE, 40, 0.80, 0.865, slowed=True),
        run_of(ADAGRAD, 10, 0.85, 0.87, 0.874),
        run_of(ADAGRAD, 10, 0.85, 0.87, 0.876),
        run_of(ADAGRAD, 14, 0.87, slowed=True),
        run_of(ADAGRAD, 14, 0.87, slowed=True),
        run_of(FIXED, 10, 0.8, 0.85, 0.84),
        run_of(SANDBLASTER, 20, 0.5, 0.9),
    ]
    return Race(workers=4, rows=1_000, rates={ALL_REDUCE: 0.1, ADAGRAD: 0.01, FIXED: 0.1}, target=0.865, runs=runs)


def test_times_to_the_target_are_compared_where_one_worker_is_slow(found: Race) -> None:
    times, _ = race.reports(found)
    faster, lost = times.targets
    assert faster.value == pytest.approx(70 / 14) and faster.reached
    assert lost.value == pytest.approx(0.5) and lost.at_most
    rows = {(row[0], row[2]): row[3] for row in times.rows}
    assert rows[ALL_REDUCE, "yes"] == "70 (60 to 80)"
    assert rows[ALL_REDUCE, "no"] == "33 (30 to 36)"
    assert rows[SANDBLASTER, "no"] == "40 (40 to 40)"


def test_a_method_that_does_not_get_there_is_not_compared(found: Race) -> None:
    found.runs[2] = run_of(ALL_REDUCE, 30, 0.80, 0.85, slowed=True)
    times, _ = race.reports(found)
    assert [target.limit for target in times.targets] == [0.5]
    assert "80 (80 to 80), 1 of 2" in [row[3] for row in times.rows]


def test_at_the_same_seconds_only_epochs_count_that_have_ended(found: Race) -> None:
    _, same = race.reports(found)
    assert same.columns == ["method", "7.5 s", "15 s", "30 s"]
    rows = {row[0]: row[1:] for row in same.rows}
    assert rows[FIXED] == ["0.0%", "80.0%", "85.0%"]
    assert rows[SANDBLASTER] == ["0.0%", "0.0%", "50.0%"]
    assert [round(target.value, 1) for target in same.targets] == [2.5, 37.5]


def test_backups_are_compared_run_by_run_and_losses_to_the_last_bit() -> None:
    losses = [[2.0, 1.0], [2.0, 1.0]]

    def dealing(portions: int, copies: int, *seconds: float) -> backups.Dealing:
        return backups.Dealing(portions=portions, copies=copies, seconds=seconds, losses=losses)

    alone, twice = backups.ALONE, backups.TWICE
    dealings = [dealing(4, alone, 9, 20), dealing(4, twice, 6, 8), dealing(32, alone, 6, 12), dealing(32, twice, 3, 4)]
    found = backups.Backups(workers=4, rows=10, steps=2, dealings=dealings)
    (report,) = backups.reports(found)
    assert [target.value for target in report.targets] == [2.0, 2.5, 0]
    dealings[3] = dealings[3].model_copy(update={"losses": [[2.0, 1.0], [2.0, 1.0000001]]})
    (report,) = backups.reports(found.model_copy(update={"dealings": dealings}))
    assert not report.targets[2].reached


def test_with_each_number_of_executors_rows_are_counted_over_epochs() -> None:
    numbers, begins = ((1, 1), (4, 7), (2, 3)), (0, 20, 40)
    phases = [
        Phase(executors=executors, workers=workers, begin=begin, end=begin + 10)
        for (executors, workers), begin in zip(numbers, begins, strict=True)
    ]
    course = [CoursePoint(at=at, epoch=at // 10, rows=10 * (at % 10)) for at in range(0, 45, 3)]
    found = Executors(rows=100, counted=[100, 100, 99], phases=phases, course=course)
    (report,) = coming_and_going.reports(found)
    assert [target.value for target in report.targets] == [4, 2, 1, 1]
    assert [row[3] for row in report.rows] == [9.0, 9.0, 0.0]
    assert [row[4] for row in report.rows] == [3, 3, 8]
    assert not report.targets[2].reached


def test_the_other_tables_hold_the_issues_bars() -> None:
    table, hidden = transport.reports(
        transport.Transport(
            megabytes=80,
            flight=[0.3, 0.5, 0.4],
            nearby=[0.3, 0.25, 0.2],
            plain=[0.1, 0.2, 0.3],
            alone=0.025,
            hidden=[transport.Hidden(period=10, step=0.030, waited=0.002)],
        )
    )
    assert table.targets[0].value == pytest.approx(0.5)
    assert [row[-1] for row in table.rows] == pytest.approx([1, 0.5, 0.8])
    assert hidden.targets[0].value == pytest.approx(1 - 0.02 / 0.4)
    found = {"rates": {1: [10], 2: [17]}, "apart": [16, 18, 19], "accuracies": {1: [0.5], 2: [0.498, 0.5]}}
    (report,) = words.reports(words.Words(rows=1, **found))
    assert [round(target.value, 3) for target in report.targets] == [1.7, 0.1]
    assert "1.80 times" in report.note
    shared = {"workers": 4, "rows": 1, "seconds": 1.0, "their_steps": 2, "their_seconds": 1.0}
    (report,) = regression.reports(regression.Regression(losses=[1.0, 0.50005], their_loss=0.5, **shared))
    assert report.targets[0].reached and "after step 2" in report.note


def test_each_method_is_one_that_training_knows_and_each_part_has_a_place_for_its_results() -> None:
    for method in METHODS.values():
        Train(**method)
    assert set(PARTS) == set(Results.model_fields)


def test_the_first_to_train_with_a_mark_is_slow_and_computes_the_same(tmp_path: Path) -> None:
    plain = {
        "network": "mlp",
        "options": {"hidden": [64]},
        "mark": str(tmp_path / "mark"),
        "pace": 1.0,
        "slowness": 3.0,
    }
    first, second = (slowed(input_shape=(256,), num_classes=4, **plain) for _ in range(2))
    assert isinstance(first, Slowed) and isinstance(second, Slowed)
    second.load_state_dict(first.state_dict())
    rows, labels = torch.rand(512, 256), torch.arange(512) % 4
    with torch.no_grad():
        first(rows)
    assert not (tmp_path / "mark").exists()  # an evaluation makes nobody slow
    for network in (first, second):
        functional.cross_entropy(network(rows), labels).backward()
    assert first.slept > 0 and second.slept == 0
    for mine, other in zip(first.parameters(), second.parameters(), strict=True):
        assert mine.grad is not None and other.grad is not None and torch.equal(mine.grad, other.grad)
