"""What a sampler answers, given the records of trials."""

import math
from typing import Any

import pytest

from sparkdl.settings import Tune
from sparkdl.tuning.study import TrialStudy, best_records
from sparkdl.tuning.trial_records import TrialRecord

SPACE: dict[str, Any] = {"train.learning_rate": {"log": [1e-4, 1.0]}, "train.batch_size": {"log_whole": [8, 256]}}
FIGURES = ["validation_loss"]


def trained(record: TrialRecord) -> TrialRecord:
    """A trial whose loss is least at a rate of 0.01."""
    record.history = [{"validation_loss": abs(math.log10(record.values["train.learning_rate"]) + 2)}]
    record.state = "finished"
    return record


def searched(sampler: str, *, seed: int = 0, trials: int = 25) -> list[TrialRecord]:
    study = TrialStudy(Tune(space=SPACE, sampler=sampler, seed=seed), FIGURES)
    records: list[TrialRecord] = []
    for number in range(trials):
        records.append(trained(TrialRecord(number, study.ask(records, number))))
    return records


@pytest.mark.parametrize("sampler", ["tpe", "cmaes", "gp"])
def test_samplers_come_near_the_best_setting(sampler: str) -> None:
    records = searched(sampler, trials=12 if sampler == "gp" else 25)  # slow from the eleventh on
    (best,) = best_records(records, FIGURES)
    assert best.history[0]["validation_loss"] < 0.2
    if sampler != "tpe":  # which still draws widely then
        late, early = (sum(each.history[0]["validation_loss"] for each in some) for some in (records[-8:], records[:8]))
        assert late < early


def test_a_search_is_the_same_again_for_a_seed_also_when_another_process_goes_on() -> None:
    records = searched("tpe", trials=15)
    study = TrialStudy(Tune(space=SPACE), FIGURES)
    assert study.ask(records[:14], 14) == records[14].values
    assert searched("tpe", trials=3)[2].values == records[2].values
    assert searched("tpe", seed=1, trials=3)[2].values != records[2].values


def test_trials_that_run_paused_or_failed_are_known_to_the_sampler() -> None:
    study = TrialStudy(Tune(space=SPACE), FIGURES)
    records = searched("random", trials=12)
    records[0].state, records[1].state, records[2].state = "running", "paused", "failed"
    states = [trial.state.name for trial in study.as_optuna(records).get_trials()]
    assert states[:4] == ["RUNNING", "PRUNED", "FAIL", "COMPLETE"]
    assert study.ask(records, 12)["train.batch_size"] in range(8, 257)


def test_of_several_figures_those_are_best_that_no_other_beats_in_all() -> None:
    def record(number: int, loss: float, seconds: float) -> TrialRecord:
        return TrialRecord(number, {}, state="finished", history=[{"validation_loss": loss, "seconds": seconds}])

    records = [record(0, 0.5, 3.0), record(1, 0.4, 4.0), record(2, 0.6, 5.0), record(3, 0.4, 4.0)]
    assert [each.number for each in best_records(records, ["validation_loss", "seconds"])] == [1, 3, 0]
    assert [each.number for each in best_records(records, ["seconds"])] == [0]


def test_the_figures_of_a_trial_are_those_of_its_best_epoch() -> None:
    history = [
        {"validation_accuracy": 0.5, "validation_loss": 0.9, "seconds": 1.0},
        {"validation_accuracy": 0.8, "validation_loss": 0.7, "seconds": 1.0},
        {"validation_accuracy": 0.7, "validation_loss": 0.5, "seconds": 1.5},
        {"validation_accuracy": math.nan, "validation_loss": 2.0, "seconds": 1.5},
    ]
    record = TrialRecord(0, {}, state="finished", history=history, parameters=12)
    assert record.outcome(["validation_accuracy", "validation_loss", "parameters"]) == (0.8, 0.7, 12.0)
    assert record.outcome(["seconds"]) == (5.0,)
    assert TrialRecord(0, {}).outcome(["seconds"]) is None
