"""Which trials go on: the rules, on records that a simulation makes."""

import random

import pytest

from sparkdl.errors import ConfigError
from sparkdl.settings import Settings
from sparkdl.tuning.stopping import Halving, create_plan
from sparkdl.tuning.trial_records import TrialRecord

FIGURE = "validation_accuracy"


def settings(stopping: object, epochs: int = 9) -> Settings:
    space = {"train.learning_rate": [0.1]}
    return Settings(train={"epochs": epochs}, tune={"space": space, "figures": FIGURE, "stopping": stopping})


def record(number: int, *accuracies: float, until: int = 1, state: str = "paused") -> TrialRecord:
    history = [{FIGURE: accuracy} for accuracy in accuracies]
    return TrialRecord(number, {}, state=state, until=until, first_rung=1, history=history)  # type: ignore[arg-type]


def test_one_in_three_goes_on_and_from_the_highest_rung_first() -> None:
    plan = create_plan(settings("asha"), FIGURE)
    assert plan.promote([record(0, 0.5), record(1, 0.6)]) is None
    three = [record(0, 0.5), record(1, 0.6), record(2, 0.4)]
    turn = plan.promote(three)
    assert turn is not None and (turn.record.number, turn.until) == (1, 3)
    high = [record(number, 0.1, 0.2, value, until=3) for number, value in enumerate((0.7, 0.9, 0.8))]
    turn = plan.promote([*high, record(3, 0.95)])
    assert turn is not None and (turn.record.number, turn.until) == (1, 9)


def test_a_trial_that_goes_on_already_is_not_chosen_again_and_counts_at_its_rung() -> None:
    plan = create_plan(settings("asha"), FIGURE)
    going = record(1, 0.6, until=3, state="running")
    assert plan.promote([record(0, 0.5), going, record(2, 0.4)]) is None
    later = [going, *(record(number, 0.5 - number / 100) for number in range(2, 7))]
    turn = plan.promote(later)
    assert turn is not None and turn.record.number == 2


def test_halving_finds_the_best_of_many_with_a_fraction_of_the_epochs() -> None:
    plan = Halving(9, first=1, reduction=3, brackets=1, figure=FIGURE)
    draws = random.Random(0)
    quality = [draws.random() for _ in range(27)]
    records: list[TrialRecord] = []
    while len(records) < len(quality) or plan.promote(records):
        if turn := plan.promote(records):
            chosen = turn.record
            chosen.until = turn.until
        else:
            chosen = TrialRecord(len(records), {})
            plan.begin(chosen)
            records.append(chosen)
        chosen.history = [{FIGURE: quality[chosen.number] - 1 / (epoch + 2)} for epoch in range(chosen.until)]
        chosen.state = "finished" if plan.is_whole(chosen) else "paused"
    finished = [each.number for each in records if each.state == "finished"]
    assert max(range(27), key=quality.__getitem__) in finished
    assert sum(each.epochs for each in records) < 27 * 9 / 2


def test_brackets_of_hyperband_begin_at_different_rungs_and_most_trials_at_the_lowest() -> None:
    plan = create_plan(settings("hyperband"), FIGURE)
    firsts = []
    for number in range(17):
        trial = TrialRecord(number, {})
        plan.begin(trial)
        firsts.append(trial.first_rung)
    assert [firsts.count(rung) for rung in (1, 3, 9)] == [9, 5, 3]
    assert set(firsts[:6]) == {1, 3, 9}


def test_the_median_rule_ends_a_trial_whose_best_figure_is_worse_than_others_at_its_epoch() -> None:
    plan = create_plan(settings({"kind": "median", "trials": 3}), FIGURE)
    others = [record(number, 0.5 + number / 10, 0.9) for number in range(3)]
    assert plan.ends_early(record(9, 0.55), [*others, record(9, 0.55)])
    assert not plan.ends_early(record(9, 0.65), [*others, record(9, 0.65)])
    assert not plan.ends_early(record(9, 0.1), others[:2])
    patient = create_plan(settings({"kind": "median", "trials": 3, "min_epochs": 2}), FIGURE)
    assert not patient.ends_early(record(9, 0.1), others)


def test_too_few_epochs_to_pause_in_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"min_epochs is 3, and train\.epochs 3: no trial would pause"):
        create_plan(settings({"kind": "asha", "min_epochs": 3}, epochs=3), FIGURE)
