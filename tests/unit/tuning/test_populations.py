"""Who takes over whose checkpoint, and with which values."""

import math

from sparkdl.settings import Settings
from sparkdl.tuning.populations import PopulationPlan
from sparkdl.tuning.trial_records import TrialRecord

FIGURE = "validation_accuracy"


def plan(**population: object) -> PopulationPlan:
    space = {"train.learning_rate": {"log": [1e-4, 1e-1]}}
    settings = Settings(train={"epochs": 6}, tune={"space": space, "population": {"size": 4, **population}})
    assert settings.tune.population
    return PopulationPlan(settings, settings.tune.population, FIGURE)


def member(number: int, *accuracies: float, rate: float = 0.01, state: str = "paused") -> TrialRecord:
    history = [{FIGURE: accuracy} for accuracy in accuracies]
    values = {"train.learning_rate": rate}
    return TrialRecord(number, values, state=state, until=len(history), history=history)  # type: ignore[arg-type]


def test_all_members_have_their_first_turn_before_one_has_its_second() -> None:
    assert plan().promote([member(0, 0.5), member(1, 0.6)]) is None
    turn = plan().promote([member(0, 0.5, 0.55), member(1, 0.6), member(2, 0.7), member(3, 0.8)])
    assert turn is not None and (turn.record.number, turn.until, turn.source) == (1, 2, None)


def test_the_worst_goes_on_from_the_checkpoint_of_the_best_with_changed_values() -> None:
    members = [member(0, 0.1, rate=0.1), member(1, 0.6), member(2, 0.7), member(3, 0.8, rate=0.02)]
    made = plan(resample=0)
    turn = made.promote(members)
    assert turn is not None and turn.record.number == 0 and turn.source is members[3] and turn.until == 2
    made.take_over(turn.record, members[3])
    factor = turn.record.values["train.learning_rate"] / 0.02
    assert math.isclose(factor, 1.2) or math.isclose(factor, 1 / 1.2)
    assert turn.record.history == members[3].history and turn.record.lineage[0]["trial"] == 3
    assert turn.record.lineage[0]["epoch"] == 1 and turn.record.lineage[0]["took_over"] == 0


def test_nobody_goes_back_to_a_checkpoint_with_fewer_epochs() -> None:
    members = [member(0, 0.1, 0.1), member(1, 0.6, 0.6), member(2, 0.7, 0.7), member(3, 0.8, state="running")]
    turn = plan().promote(members)
    assert turn is not None and (turn.record.number, turn.source) == (0, None)
