"""Which epoch is the best one, and when a run ends before its last."""

import pytest

from sparkdl.settings import Train
from sparkdl.settings.target import Target
from sparkdl.training.best import is_better, is_over, seconds_to_target
from sparkdl.training.tasks import Classification, Regression

CLASSES, NUMBERS = Classification(4), Regression(0.0, 1.0)


def test_an_epoch_without_a_validation_loss_is_better_than_none_and_no_better_than_any() -> None:
    settings = Train(best_by="loss")
    first, second = ({"validation_loss": loss} for loss in (float("nan"), 3.0))
    assert is_better(first, [], 0, settings, CLASSES)
    assert is_better(first, [first], 0, settings, CLASSES)
    assert is_better(second, [first], 0, settings, CLASSES)
    assert not is_better(first, [first, second], 1, settings, CLASSES)


def test_the_task_says_which_figure_decides_and_errors_are_better_when_smaller() -> None:
    better, worse = ({"validation_r2": 0.9, "validation_mae": 1.0}, {"validation_r2": 0.8, "validation_mae": 2.0})
    for settings in (Train(), Train(best_by="mae")):
        assert is_better(better, [worse], 0, settings, NUMBERS)
        assert not is_better(worse, [better], 0, settings, NUMBERS)


def test_an_epoch_in_which_weights_still_leave_is_neither_the_best_nor_the_last() -> None:
    pruning = {"kind": "magnitude", "begin_epoch": 1, "end_epoch": 2}
    settings = Train.model_validate({"epochs": 9, "patience": 1, "pruning": pruning, "target": {"value": 0.9}})
    history = [{"validation_accuracy": accuracy} for accuracy in (0.95, 0.8, 0.5, 0.4)]
    assert all(is_better(history[count], history[:count], 0, settings, CLASSES) for count in (1, 2))
    assert not is_better(history[3], history[:3], 2, settings, CLASSES)
    assert [is_over(history[:count], settings, CLASSES) for count in range(5)] == [False] * 4 + [True]


def test_the_seconds_to_a_target_are_not_those_of_an_epoch_in_which_weights_still_leave() -> None:
    history = [{"validation_accuracy": accuracy, "seconds": 2.0} for accuracy in (0.95, 0.8, 0.5, 0.92)]
    whole = Train.model_validate({"epochs": 9, "target": {"value": 0.9}})
    assert seconds_to_target(history, whole) == 2.0
    pruning = {"kind": "magnitude", "begin_epoch": 1, "end_epoch": 2}
    pruned = Train.model_validate({"epochs": 9, "pruning": pruning, "target": {"value": 0.9}})
    assert seconds_to_target(history, pruned) == 8.0
    assert seconds_to_target(history[:3], pruned) is None
    assert seconds_to_target(history, Train()) is None


@pytest.mark.parametrize(
    ("accuracies", "over"), [([], False), ([0.5, 0.4], False), ([0.5, 0.4, 0.5], True), ([0.5, 0.4, 0.6], False)]
)
def test_patience_ends_with_epochs_that_are_no_better_and_ties_are_none(accuracies: list[float], over: bool) -> None:
    history = [{"validation_accuracy": accuracy} for accuracy in accuracies]
    assert is_over(history, Train(patience=2), CLASSES) == over
    assert not is_over(history, Train(), CLASSES)


def test_a_target_may_be_any_figure() -> None:
    history = [{"train_mae": 3.0}]
    assert is_over(history, Train(target=Target(metric="train_mae", value=3.5)), NUMBERS)
    assert not is_over(history, Train(target=Target(metric="train_mae", value=2.5)), NUMBERS)
    with pytest.raises(ValueError, match="metric"):
        Target(metric="train_aucpr", value=1)
