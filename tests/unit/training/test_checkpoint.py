"""The files of a run."""

import errno
import os
import pickle
from pathlib import Path

import pytest
import torch
from fsspec.implementations.local import LocalFileSystem

from sparkdl.errors import CheckpointError
from sparkdl.storage import read_file, write_file
from sparkdl.training.checkpoint import (
    latest,
    list_checkpoints,
    load_checkpoint,
    prune,
    remove_partial,
    save_checkpoint,
    step_of,
)

from ...s3_server import S3Server


def save(folder: Path, step: int, epoch: int = 0, *, best: str = "", seconds: float = 0.0) -> Path:
    state = {"model": {"weight": torch.full((1000,), float(step))}, "best": best, "seconds": seconds}
    return Path(save_checkpoint(str(folder), "step", state, step=step, epoch=epoch))


def test_the_newest_whole_checkpoint_is_the_one_to_continue_from(tmp_path: Path) -> None:
    first, second, third = (save(tmp_path, step) for step in (10, 20, 30))
    assert latest(str(tmp_path)) == str(third) and step_of(str(third)) == 30
    third.write_bytes(third.read_bytes()[:-100])  # torn
    assert latest(str(tmp_path)) == str(second)
    content = bytearray(second.read_bytes())
    content[len(content) // 2] ^= 1  # altered
    second.write_bytes(content)
    assert latest(str(tmp_path)) == str(first)
    with pytest.raises(CheckpointError, match="was altered, or not written to its end"):
        load_checkpoint(str(second))


def test_the_end_of_an_epoch_is_newer_than_its_last_step(tmp_path: Path) -> None:
    save(tmp_path, 10, 0)
    after = save(tmp_path, 10, 1)
    assert latest(str(tmp_path)) == str(after)


def test_a_checkpoint_whose_best_weights_are_damaged_is_passed_over(tmp_path: Path) -> None:
    whole = save(tmp_path, 10)
    best = Path(save_checkpoint(str(tmp_path), "best", {"model": {}}, step=20, epoch=1))
    save(tmp_path, 20, 1, best=best.name)
    best.write_bytes(b"")
    assert latest(str(tmp_path)) == str(whole)


def test_a_checkpoint_whose_best_weights_are_gone_is_passed_over(tmp_path: Path) -> None:
    whole = save(tmp_path, 10)
    save(tmp_path, 20, 1, best="best-000000020-00001.0123456789abcdef.pt")
    assert latest(str(tmp_path)) == str(whole)


def test_on_s3_checkpoints_are_listed_continued_from_and_pruned_as_anywhere(s3: S3Server) -> None:
    folder = "s3://tests/runs/one"
    assert latest(folder) is None
    for step in (10, 20, 30):
        written = save_checkpoint(folder, "step", {"model": {}, "best": ""}, step=step, epoch=0)
        assert latest(folder) == written
    prune(folder, keep_last=2, keep_best=1, written=written, keep=())
    remove_partial(folder)
    assert [step_of(path) for path in list_checkpoints(folder, "step")] == [30, 20]
    write_file(written, read_file(written)[:-1])
    assert step_of(latest(folder)) == 20


def failing(*args: object, **options: object) -> None:
    raise OSError(errno.EIO, "Input/output error")


def test_storage_that_does_not_give_a_checkpoint_is_an_error_and_no_reason_to_begin_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (10, 20):
        last = save(tmp_path, step)
    with monkeypatch.context() as patch:
        patch.setattr(LocalFileSystem, "cat_file", failing)
        with pytest.raises(CheckpointError, match=rf"{last.name}: Input/output error; it may be whole"):
            latest(str(tmp_path))
        patch.setattr(LocalFileSystem, "ls", failing)
        with pytest.raises(CheckpointError, match=rf"cannot list the checkpoints in {tmp_path}: Input/output error"):
            latest(str(tmp_path))
        remove_partial(str(tmp_path))  # which only tidies up
    assert latest(str(tmp_path)) == str(last)


def test_old_checkpoints_go_and_the_best_that_the_kept_ones_refer_to_stay(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        last = save(tmp_path, step)
        best = save_checkpoint(str(tmp_path), "best", {"model": {}}, step=step, epoch=step // 10)
    prune(str(tmp_path), keep_last=2, keep_best=1, written=str(last), keep={Path(best).name})
    assert [step_of(path) for path in list_checkpoints(str(tmp_path), "step")] == [30, 20]
    assert [step_of(path) for path in list_checkpoints(str(tmp_path), "best")] == [30, 20]


def test_what_was_just_written_stays_though_damaged_ones_of_its_place_or_later_are_there(tmp_path: Path) -> None:
    for step in (40, 300):
        save(tmp_path, step, seconds=1).write_bytes(b"torn")
    assert latest(str(tmp_path)) is None
    for step in (20, 30, 40, 50):
        written = save(tmp_path, step)
        prune(str(tmp_path), keep_last=1, keep_best=1, written=str(written), keep=())
        assert latest(str(tmp_path)) == str(written)
    assert [step_of(path) for path in list_checkpoints(str(tmp_path), "step")] == [300, 50]


def test_the_best_one_stays_however_long_ago_it_was(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        written = save(tmp_path, step)
        save_checkpoint(str(tmp_path), "best", {"model": {}}, step=step, epoch=step // 10)
        best = Path(list_checkpoints(str(tmp_path), "best")[-1])
        prune(str(tmp_path), keep_last=1, keep_best=1, written=str(written), keep={best.name})
    assert step_of(str(best)) == 10 and best.exists()


def test_what_a_killed_attempt_began_to_write_is_removed(tmp_path: Path) -> None:
    save(tmp_path, 10)
    (tmp_path / ".0123.part").write_bytes(b"half")
    remove_partial(str(tmp_path))
    assert len(list(tmp_path.iterdir())) == 1


def test_a_folder_without_checkpoints_has_none(tmp_path: Path) -> None:
    assert latest(str(tmp_path / "absent")) is None and step_of(None) == 0


class Malicious:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch executed",)


def test_a_strangers_checkpoint_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for content in (pickle.dumps(Malicious()), b"not a checkpoint"):
        (tmp_path / "stranger.pt").write_bytes(content)
        with pytest.raises(CheckpointError, match=r"stranger\.pt is not a checkpoint"):
            load_checkpoint(str(tmp_path / "stranger.pt"))
    torch.save({"model": Malicious()}, tmp_path / "stranger.pt")
    with pytest.raises(CheckpointError):
        load_checkpoint(str(tmp_path / "stranger.pt"))
    assert not (tmp_path / "executed").exists()


def test_a_place_that_cannot_be_written_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError, match=r"cannot write the checkpoint .*file/run.*free space"):
        save(tmp_path / "file" / "run", 10)
