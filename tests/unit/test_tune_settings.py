"""What a file may say of a search, and what is refused before there is one."""

from pathlib import Path
from typing import Any

import pytest

from sparkdl.config import load_settings
from sparkdl.errors import ConfigError
from sparkdl.settings import Settings
from sparkdl.tuning.trial_datasets import fitting_values

PREPARE = {"output": "output/x", "label": "y", "features": ["a"]}


def settings(space: dict[str, Any], *, train: dict[str, Any] | None = None, **tune: Any) -> Settings:
    return Settings(prepare=PREPARE, train=train or {}, tune={"space": space, **tune})


def test_a_file_names_keys_of_any_depth_with_lists_and_ranges(tmp_path: Path) -> None:
    text = """
train: {strategy: local_sgd, epochs: 3}
prepare: {output: x, label: y, stages: [{kind: standardise, columns: [a]}]}
tune:
  space:
    train.learning_rate: {log: [1e-4, 1e-1]}
    train.strategy.period: [4, 8, 16]
    train.model_options.hidden: [[128], [256, 128]]
    prepare.stages.0.columns: [[a], [a, b]]
"""
    (tmp_path / "conf.yaml").write_text(text)
    read = load_settings(tmp_path / "conf.yaml")
    chosen = read.with_values(
        {
            "train.learning_rate": 0.01,
            "train.strategy.period": 8,
            "train.model_options.hidden": [128],
            "prepare.stages.0.columns": ["a", "b"],
        },
        place="a trial",
    )
    assert chosen.train.learning_rate == 0.01 and chosen.train.model_options == {"hidden": [128]}
    assert chosen.train.strategy.model_dump()["period"] == 8 and chosen.train.epochs == 3
    assert chosen.prepare is not None and chosen.prepare.stages[0].model_dump()["columns"] == ["a", "b"]


@pytest.mark.parametrize(
    ("space", "told"),
    [
        ({"train.lerning_rate": [1, 2]}, "unknown key 'train.lerning_rate'; did you mean 'train.learning_rate'?"),
        ({"trian.epochs": [1, 2]}, "unknown key 'trian'; did you mean 'train'?"),
        ({"train.strategy.perod": [1, 2]}, "unknown key 'train.strategy.perod'; did you mean 'train.strategy.period'?"),
        ({"train.epochs.first": [1, 2]}, "'train.epochs' is a value, below which there is no key 'first'"),
        ({"train.epochs": []}, "the list is empty"),
        ({"train.learning_rate": {"log": [1, 0.1]}}, "the range is empty: it begins at 1 and ends at 0.1"),
        ({"train.learning_rate": {"log": [0, 0.1]}}, "a logarithmic range must begin above zero"),
        ({"train.learning_rate": {"linear": [0, 1], "log": [1, 2]}}, "give one of `linear`, `log`, `whole`"),
        ({"train.batch_size": {"log_whole": [1, 8], "step": 2}}, "`step` is for `linear`"),
        ({"train.run_dir": ["a", "b"]}, "train.run_dir is set by the search itself"),
        ({"tracking.experiment": ["a", "b"]}, "tracking.experiment cannot be searched"),
        ({"prepare.source.path": ["a", "b"]}, "all trials use the same rows"),
    ],
)
def test_a_space_that_cannot_be_is_refused_with_the_reason(space: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        settings(space)
    assert told in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("tune", "told"),
    [
        ({"figures": "validation_acuracy"}, "should match pattern"),
        ({"figures": ["seconds", "seconds"]}, "names one twice"),
        ({"figures": ["validation_loss", "seconds"], "stopping": "asha"}, "compares trials by one figure"),
        ({"figures": ["validation_loss", "seconds"], "sampler": "cmaes"}, "cmaes optimises a single figure"),
        ({"figures": "seconds", "stopping": "asha"}, "does not show how good a trial will be"),
        ({"sampler": "grid"}, "sampler grid tries all values"),
        ({"population": {"size": 4}, "stopping": "median"}, "leave one of them out"),
        ({"population": {"size": 4}, "trials": 8}, "the number of trials is population.size"),
        ({"stopping": "hyperbnd"}, "unknown kind 'hyperbnd'; did you mean 'hyperband'?"),
    ],
)
def test_ways_to_search_that_do_not_fit_together_are_refused(tune: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=r".") as refused:
        settings({"train.learning_rate": {"log": [1e-4, 1e-1]}}, **tune)
    assert told in str(refused.value)


def test_a_grid_has_as_many_trials_as_combinations() -> None:
    found = settings({"train.epochs": [1, 2], "train.weight_decay": {"linear": [0, 1], "step": 0.5}}, sampler="grid")
    assert found.tune.budget == 6
    assert settings({"train.epochs": [1, 2]}).tune.budget == 20


def test_a_value_that_no_run_may_have_is_found_before_the_first_trial() -> None:
    with pytest.raises(ConfigError, match=r"tune\.space: train\.batch_size: .* greater than 0 \(got 0\)"):
        fitting_values(settings({"train.batch_size": {"whole": [0, 8]}}))


def test_a_value_may_fit_to_some_of_the_others_alone() -> None:
    space = {"train.strategy": ["allreduce", {"kind": "local_sgd", "period": 4}], "train.gradient_noise": [None, {}]}
    values = fitting_values(settings({key: space[key] for key in ("train.strategy",)}))
    assert values == {"train.strategy": "allreduce"}
