"""What is needed to continue a run on another day."""

import errno
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from fsspec.implementations.local import LocalFileSystem
from torch import nn
from torch.nn import functional

from sparkdl.data import Dataset
from sparkdl.errors import CheckpointError, ConfigError
from sparkdl.settings import Train
from sparkdl.settings.strategies import LocalSGDOptions
from sparkdl.training.checkpoints.record import RunRecord, find_run, parts_of, recipe_of

from ....s3_server import S3Server

PARTS = parts_of(nn.Linear(2, 3), Train())


@pytest.fixture
def settings(tmp_path: Path) -> Train:
    return Train(run_dir=str(tmp_path), batch_size=8)


def begin(run_id: str, clouds: Dataset, settings: Train, **changes: object) -> RunRecord:
    record = replace(RunRecord(run_id, clouds.digest, recipe_of(settings), 2, settings.epochs, parts=PARTS), **changes)
    record.save(f"{settings.run_dir}/{run_id}")
    return record


def resuming(settings: Train, run: str, **changes: object) -> Train:
    return settings.model_copy(update={"resume": run, **changes})


def test_a_run_is_found_by_its_id_and_may_go_on_for_more_epochs(clouds: Dataset, settings: Train) -> None:
    record = begin("abc", clouds, settings)
    assert find_run(clouds, resuming(settings, "abc", epochs=9, checkpoint_steps=5), PARTS) == record


def test_auto_finds_the_unfinished_run_of_the_same_dataset_and_recipe(clouds: Dataset, settings: Train) -> None:
    assert find_run(clouds, resuming(settings, "auto"), PARTS) is None
    begin("finished", clouds, settings, finished=True)
    begin("another dataset", clouds, settings, dataset="0" * 64)
    begin("another recipe", clouds, settings.model_copy(update={"seed": 5}))
    assert find_run(clouds, resuming(settings, "auto"), PARTS) is None
    record = begin("unfinished", clouds, settings)
    assert find_run(clouds, resuming(settings, "auto"), PARTS) == record


def test_auto_finds_the_run_that_was_begun_last_whatever_the_storage_says_of_times(
    clouds: Dataset, settings: Train, s3: S3Server
) -> None:
    for run_dir in (settings.run_dir, "s3://tests/runs"):
        there = settings.model_copy(update={"run_dir": run_dir})
        newest = begin("b", clouds, there, begun=2e9)
        begin("a", clouds, there, begun=1e9)
        begin("c", clouds, there)  # as one was written before there was such a thing
        assert find_run(clouds, resuming(there, "auto"), PARTS) == newest


@pytest.mark.parametrize(
    ("changes", "says"),
    [({"batch_size": 9}, r"train\.batch_size was 8 and is 9"), ({"seed": 5}, r"train\.seed was 0 and is 5")],
)
def test_another_recipe_is_an_error_that_names_what_changed(
    clouds: Dataset, settings: Train, changes: dict[str, object], says: str
) -> None:
    begin("abc", clouds, settings)
    with pytest.raises(ConfigError, match=says):
        find_run(clouds, resuming(settings, "abc", **changes), PARTS)


def test_a_key_that_was_learned_later_passes_at_its_default_and_no_other(clouds: Dataset, settings: Train) -> None:
    recipe = recipe_of(settings)
    del recipe["label_smoothing"]
    record = begin("abc", clouds, settings, recipe=recipe)
    assert find_run(clouds, resuming(settings, "abc"), PARTS) == record
    with pytest.raises(ConfigError, match=r"train\.label_smoothing was 0\.0 and is 0\.1"):
        find_run(clouds, resuming(settings, "abc", label_smoothing=0.1), PARTS)


def test_a_kind_is_written_as_its_bare_name_and_its_keys_below_it(settings: Train) -> None:
    assert recipe_of(settings)["strategy"] == "allreduce"
    recipe = recipe_of(settings.model_copy(update={"strategy": LocalSGDOptions(period=8)}))
    assert (recipe["strategy"], recipe["strategy.period"]) == ("local_sgd", "8")


def test_a_run_that_is_named_may_go_on_with_another_strategy_and_auto_looks_for_its_own(
    clouds: Dataset, settings: Train
) -> None:
    record = begin("abc", clouds, settings)
    other = {"strategy": LocalSGDOptions(period=3)}
    assert find_run(clouds, resuming(settings, "abc", **other), PARTS) == record
    assert find_run(clouds, resuming(settings, "auto"), PARTS) == record
    assert find_run(clouds, resuming(settings, "auto", **other), PARTS) is None


def test_another_dataset_is_an_error(clouds: Dataset, settings: Train) -> None:
    begin("abc", clouds, settings, dataset="0" * 64)
    with pytest.raises(ConfigError, match="another digest"):
        find_run(clouds, resuming(settings, "abc"), PARTS)


def test_a_finished_run_goes_on_only_for_more_epochs(clouds: Dataset, settings: Train) -> None:
    record = begin("abc", clouds, settings, finished=True)
    with pytest.raises(ConfigError, match=r"has finished its 1 epochs; raise train\.epochs"):
        find_run(clouds, resuming(settings, "abc"), PARTS)
    assert find_run(clouds, resuming(settings, "abc", epochs=2), PARTS) == record


def test_a_run_that_does_not_exist_is_an_error(clouds: Dataset, settings: Train) -> None:
    with pytest.raises(ConfigError, match=r"there is no run in .*/nowhere"):
        find_run(clouds, resuming(settings, "nowhere"), PARTS)


def test_a_strangers_run_that_may_not_be_read_is_passed_over(
    clouds: Dataset, settings: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = begin("ours", clouds, settings)
    begin("theirs", clouds, settings)
    read = LocalFileSystem.cat_file

    def refuse(filesystem: LocalFileSystem, path: str, *args: object, **options: object) -> bytes:
        if "theirs" in path:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return read(filesystem, path, *args, **options)

    monkeypatch.setattr(LocalFileSystem, "cat_file", refuse)
    assert find_run(clouds, resuming(settings, "auto"), PARTS) == record
    with pytest.raises(ConfigError, match=r"cannot read .*/theirs/run\.json: Permission denied"):
        find_run(clouds, resuming(settings, "theirs"), PARTS)


def test_a_run_that_storage_does_not_give_is_no_reason_to_begin_again(
    clouds: Dataset, settings: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **options: object) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    begin("ours", clouds, settings)
    monkeypatch.setattr(LocalFileSystem, "cat_file", fail)
    with pytest.raises(CheckpointError, match=r"cannot read .*/ours/run\.json: Input/output error; try again"):
        find_run(clouds, resuming(settings, "auto"), PARTS)


def test_a_callable_that_makes_another_network_begins_another_run(clouds: Dataset, settings: Train) -> None:
    begin("abc", clouds, settings)
    other = parts_of(nn.Linear(2, 4), settings)
    assert find_run(clouds, resuming(settings, "auto"), other) is None
    with pytest.raises(ConfigError, match=r"train\.model, train\.loss or train\.optimizer makes something else"):
        find_run(clouds, resuming(settings, "abc"), other)
    record = begin("abc", clouds, settings, parts="")  # as one was written before there was such a thing
    assert find_run(clouds, resuming(settings, "abc"), other) == record


def test_a_network_is_known_by_its_layers_and_not_by_their_weights() -> None:
    def parts(*layers: nn.Module) -> str:
        return parts_of(nn.Sequential(*layers), Train())

    assert parts(nn.Linear(2, 3), nn.ReLU()) == parts(nn.Linear(2, 3), nn.ReLU())
    assert parts(nn.Linear(2, 3), nn.ReLU()) != parts(nn.Linear(2, 3), nn.Tanh())


def test_loss_and_optimizer_are_known_by_what_they_are_made_of() -> None:
    network = nn.Linear(2, 3)

    def made(weight: float) -> list[str]:
        weights = torch.tensor([weight, 1.0])
        losses = partial(functional.cross_entropy, weight=weights), nn.CrossEntropyLoss(weight=weights)
        optimizer = partial(torch.optim.SGD, momentum=weight / 10)
        of_losses = [parts_of(network, Train(loss=loss)) for loss in losses]
        return [*of_losses, parts_of(network, Train(optimizer=optimizer))]

    for one, same, other in zip(made(2), made(2), made(3), strict=True):
        assert one == same != other


def test_where_functions_lie_is_no_part_of_them() -> None:
    def loss() -> partial[torch.Tensor]:
        return partial(functional.cross_entropy, scales=[functional.relu, object()])

    assert "0x" not in recipe_of(Train(model_options={"activation": functional.softmax}))["model_options"]
    network = nn.Linear(2, 3)
    first, second = loss(), loss()
    assert parts_of(network, Train(loss=first)) == parts_of(network, Train(loss=second))
