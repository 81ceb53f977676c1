"""What is needed to continue a run on another day."""

from dataclasses import replace
from pathlib import Path

import pytest

from sparkdl.data import Dataset
from sparkdl.errors import ConfigError
from sparkdl.settings import Train
from sparkdl.training.record import RunRecord, find_run, recipe_of


@pytest.fixture
def settings(tmp_path: Path) -> Train:
    return Train(run_dir=str(tmp_path), batch_size=8)


def begin(run_id: str, clouds: Dataset, settings: Train, **changes: object) -> RunRecord:
    record = replace(RunRecord(run_id, clouds.digest, recipe_of(settings), 2, settings.epochs), **changes)
    record.save(f"{settings.run_dir}/{run_id}")
    return record


def resuming(settings: Train, run: str, **changes: object) -> Train:
    return settings.model_copy(update={"resume": run, **changes})


def test_a_run_is_found_by_its_id_and_may_go_on_for_more_epochs(clouds: Dataset, settings: Train) -> None:
    record = begin("abc", clouds, settings)
    assert find_run(clouds, resuming(settings, "abc", epochs=9, checkpoint_steps=5)) == record


def test_auto_finds_the_unfinished_run_of_the_same_dataset_and_recipe(clouds: Dataset, settings: Train) -> None:
    assert find_run(clouds, resuming(settings, "auto")) is None
    begin("finished", clouds, settings, finished=True)
    begin("another dataset", clouds, settings, dataset="0" * 64)
    begin("another recipe", clouds, settings.model_copy(update={"seed": 5}))
    assert find_run(clouds, resuming(settings, "auto")) is None
    record = begin("unfinished", clouds, settings)
    assert find_run(clouds, resuming(settings, "auto")) == record


@pytest.mark.parametrize(
    ("changes", "says"),
    [({"batch_size": 9}, r"train\.batch_size was 8 and is 9"), ({"seed": 5}, r"train\.seed was 0 and is 5")],
)
def test_another_recipe_is_an_error_that_names_what_changed(
    clouds: Dataset, settings: Train, changes: dict[str, object], says: str
) -> None:
    begin("abc", clouds, settings)
    with pytest.raises(ConfigError, match=says):
        find_run(clouds, resuming(settings, "abc", **changes))


def test_another_dataset_is_an_error(clouds: Dataset, settings: Train) -> None:
    begin("abc", clouds, settings, dataset="0" * 64)
    with pytest.raises(ConfigError, match="another digest"):
        find_run(clouds, resuming(settings, "abc"))


def test_a_finished_run_goes_on_only_for_more_epochs(clouds: Dataset, settings: Train) -> None:
    record = begin("abc", clouds, settings, finished=True)
    with pytest.raises(ConfigError, match=r"has finished its 1 epochs; raise train\.epochs"):
        find_run(clouds, resuming(settings, "abc"))
    assert find_run(clouds, resuming(settings, "abc", epochs=2)) == record


def test_a_run_that_does_not_exist_is_an_error(clouds: Dataset, settings: Train) -> None:
    with pytest.raises(ConfigError, match=r"there is no run in .*/nowhere"):
        find_run(clouds, resuming(settings, "nowhere"))
