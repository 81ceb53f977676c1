"""What is searched, as Optuna draws it and as a file would have it."""

from typing import Any

import pytest

from sparkdl.settings import Tune
from sparkdl.tuning.space import Space

SEARCHED: dict[str, Any] = {
    "train.learning_rate": {"log": [1e-4, 1e-1]},
    "train.weight_decay": {"linear": [0, 0.35], "step": 0.1},
    "train.batch_size": {"log_whole": [8, 64]},
    "train.model_options.hidden": [[64], [64, 32], 1, True, None],
}


@pytest.fixture
def space() -> Space:
    return Space(Tune(space=SEARCHED).space)


def test_values_that_are_lists_or_look_alike_come_back_as_they_were(space: Space) -> None:
    for hidden in SEARCHED["train.model_options.hidden"]:
        values = {"train.learning_rate": 0.1, "train.weight_decay": 0.2, "train.batch_size": 8}
        values["train.model_options.hidden"] = hidden
        back = space.values(space.params(values))
        assert back == values and type(back["train.model_options.hidden"]) is type(hidden)


def test_optuna_draws_within_the_ends(space: Space) -> None:
    found = space.distributions()
    assert found["train.weight_decay"].high == pytest.approx(0.3)  # type: ignore[attr-defined]
    assert found["train.batch_size"].log and found["train.batch_size"].low == 8  # type: ignore[attr-defined]
    assert found["train.model_options.hidden"].single() is False


def test_a_grid_has_each_combination_once() -> None:
    space = Space(Tune(space={"train.epochs": [1, 2, 3], "train.batch_size": {"whole": [8, 10]}}).space)
    found = {tuple(space.combination(number).values()) for number in range(9)}
    assert found == {(epochs, size) for epochs in (1, 2, 3) for size in (8, 9, 10)}


def test_explored_values_stay_in_the_space_and_are_the_same_for_a_seed(space: Space) -> None:
    values = {"train.learning_rate": 0.1, "train.weight_decay": 0.3, "train.batch_size": 8}
    values["train.model_options.hidden"] = [64]
    seen = set()
    for seed in range(40):
        changed = space.explored(values, factor=1.2, resample=0.25, seed=seed)
        assert changed == space.explored(values, factor=1.2, resample=0.25, seed=seed)
        assert 1e-4 <= changed["train.learning_rate"] <= 1e-1 and 8 <= changed["train.batch_size"] <= 64
        assert min(abs(changed["train.weight_decay"] - 0.1 * step) for step in range(4)) < 1e-9
        assert changed["train.model_options.hidden"] in SEARCHED["train.model_options.hidden"]
        seen.add(changed["train.learning_rate"])
    assert len(seen) > 5
