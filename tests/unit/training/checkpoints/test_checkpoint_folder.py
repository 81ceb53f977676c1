"""The files of a run."""

import errno
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from fsspec.implementations.local import LocalFileSystem

from sparkdl.errors import CheckpointError, DamagedCheckpointError
from sparkdl.storage import list_folder, read_file, write_file
from sparkdl.training.checkpoints.checkpoint import (
    Manifest,
    Shard,
    load_manifest,
    load_shard,
    load_shared,
    save_best,
    save_manifest,
    save_shard,
)
from sparkdl.training.checkpoints.checkpoint_folder import (
    latest,
    list_best,
    list_manifests,
    prune,
    remove_leftovers,
    step_of,
)

from ....s3_server import S3Server

ABSENT = Shard(name="absent", sha256="0" * 64, bytes=0)


def new_manifest(*, shards: Sequence[Shard] = (ABSENT, ABSENT), best: Shard | None = None, **changes: Any) -> Manifest:
    shared, *others = shards
    known: dict[str, Any] = {"step": 0, "epoch": 0, "batches": 0, "batch_size": 4, "phases": [], "seconds": 0.0}
    known |= {"totals": [[0.0, 0.0, 0.0]], "history": [], "best_epoch": 0, "figures": [], "strategy": {}}
    return Manifest(**(known | changes), best=best, shared=shared, shards=others)


def save(folder: Path | str, step: int, epoch: int = 0, *, best: Shard | None = None, seconds: float = 0.0) -> Path:
    """A checkpoint of two ranks."""
    weights = {"model": {"weight": torch.full((1000,), float(step))}}
    place = f"{step:09d}-{epoch:05d}.01234567"
    shards = [save_shard(str(folder), place, part, weights) for part in ("shared", "rank-0", "rank-1")]
    manifest = new_manifest(step=step, epoch=epoch, seconds=seconds, shards=shards, best=best)
    return Path(save_manifest(str(folder), manifest))


def shards_of(path: Path) -> list[Path]:
    manifest = load_manifest(str(path))
    return [path.parent / shard.name for shard in (manifest.shared, *manifest.shards)]


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_the_newest_whole_checkpoint_is_the_one_to_continue_from(tmp_path: Path) -> None:
    first, second, third = (save(tmp_path, step) for step in (10, 20, 30))
    assert latest(str(tmp_path)) == str(third) and step_of(str(third)) == 30
    shard = shards_of(third)[2]
    shard.write_bytes(shard.read_bytes()[:-100])  # torn
    assert latest(str(tmp_path)) == str(second)
    flip_a_bit(second)
    assert latest(str(tmp_path)) == str(first)
    with pytest.raises(DamagedCheckpointError, match="was altered, or not written to its end"):
        load_manifest(str(second))


def test_an_altered_shard_is_noticed_by_who_reads_it_and_the_checkpoint_before_is_used(tmp_path: Path) -> None:
    first, second = save(tmp_path, 10), save(tmp_path, 20)
    flip_a_bit(shards_of(second)[1])
    manifest = load_manifest(str(second))
    load_shard(str(tmp_path), manifest.shared)
    with pytest.raises(DamagedCheckpointError, match=r"rank-0\.pt was altered"):
        load_shard(str(tmp_path), manifest.shards[0])
    remove_leftovers(str(tmp_path), damaged=str(second))  # as the driver does when a rank says so
    assert latest(str(tmp_path)) == str(first)
    assert len(list(tmp_path.iterdir())) == 4


def test_a_checkpoint_of_an_older_version_is_named_and_no_reason_to_begin_again(tmp_path: Path) -> None:
    (tmp_path / "step-000000010-00001.0123456789abcdef.pt").write_bytes(b"all in one")
    with pytest.raises(CheckpointError, match="was written by an older version"):
        latest(str(tmp_path))


def test_a_checkpoint_of_a_newer_version_is_named(tmp_path: Path) -> None:
    content = json.dumps(new_manifest().model_dump() | {"format": 4}).encode()
    name = f"step-000000010-00001.{hashlib.sha256(content).hexdigest()[:16]}.json"
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=r"is not one that this version reads \(format 3\)"):
        latest(str(tmp_path))


def test_the_end_of_an_epoch_is_newer_than_its_last_step(tmp_path: Path) -> None:
    save(tmp_path, 10, 0)
    after = save(tmp_path, 10, 1)
    assert latest(str(tmp_path)) == str(after)


def test_a_checkpoint_whose_best_weights_are_damaged_or_gone_is_passed_over(tmp_path: Path) -> None:
    whole = save(tmp_path, 10)
    best = save_best(str(tmp_path), {}, step=20, epoch=1)
    save(tmp_path, 20, 1, best=best)
    (tmp_path / best.name).write_bytes(b"")
    assert latest(str(tmp_path)) == str(whole)
    (tmp_path / best.name).unlink()
    assert latest(str(tmp_path)) == str(whole)


def test_on_s3_checkpoints_are_listed_continued_from_and_pruned_as_anywhere(s3: S3Server) -> None:
    folder = "s3://tests/runs/one"
    assert latest(folder) is None
    for step in (10, 20, 30):
        shared = save_shard(folder, f"{step:09d}-00000.01234567", "shared", {"model": {}})
        written = save_manifest(folder, new_manifest(step=step, shards=[shared]))
        assert latest(folder) == written
    prune(folder, keep_last=2, keep_best=1, written=written, keep=())
    save_shard(folder, "000000040-00000.01234567", "rank-0", {})  # of a checkpoint that was not finished
    remove_leftovers(folder)
    assert [step_of(path) for path in list_manifests(folder)] == [30, 20]
    assert sorted(entry.name for entry in list_folder(folder) if entry.name.endswith(".pt")) == [
        "shard-000000020-00000.01234567.shared.pt",
        "shard-000000030-00000.01234567.shared.pt",
    ]
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
        remove_leftovers(str(tmp_path))  # which only tidies up
    assert latest(str(tmp_path)) == str(last)


def test_old_checkpoints_go_and_the_best_that_the_kept_ones_refer_to_stay(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        last = save(tmp_path, step)
        best = save_best(str(tmp_path), {}, step=step, epoch=step // 10)
    prune(str(tmp_path), keep_last=2, keep_best=1, written=str(last), keep={best.name})
    assert [step_of(path) for path in list_manifests(str(tmp_path))] == [30, 20]
    assert [step_of(path) for path in list_best(str(tmp_path))] == [30, 20]


def test_weights_that_are_the_best_ones_are_read_from_their_file_which_stays_as_long(tmp_path: Path) -> None:
    folder = str(tmp_path)
    for step in (10, 20, 30, 40):
        best = save_best(folder, {"weight": torch.full((2,), float(step))}, step=step, epoch=0)
        shared = save_shard(folder, f"{step:09d}-00000.01234567", "shared", {"model": None, "optimizer": step})
        if step != 30:  # its manifest could not be written
            written = save_manifest(folder, new_manifest(step=step, shards=[shared], best=best))
    prune(folder, keep_last=2, keep_best=1, written=written, keep={best.name})
    assert [step_of(path) for path in list_manifests(folder)] == [40, 20]
    for path in list_manifests(folder):
        manifest = load_manifest(path)
        found = load_shared(folder, manifest)
        assert found["optimizer"] == manifest.step and found["model"]["weight"].tolist() == [manifest.step] * 2
    (tmp_path / best.name).write_bytes(b"torn")
    with pytest.raises(DamagedCheckpointError, match=best.name):
        load_shared(folder, load_manifest(written))


def test_what_was_just_written_stays_though_damaged_ones_of_its_place_or_later_are_there(tmp_path: Path) -> None:
    for step in (40, 300):
        save(tmp_path, step, seconds=1).write_bytes(b"torn")
    assert latest(str(tmp_path)) is None
    for step in (20, 30, 40, 50):
        written = save(tmp_path, step)
        prune(str(tmp_path), keep_last=1, keep_best=1, written=str(written), keep=())
        assert latest(str(tmp_path)) == str(written)
    assert [step_of(path) for path in list_manifests(str(tmp_path))] == [300, 50]


def test_the_best_one_stays_however_long_ago_it_was(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        written = save(tmp_path, step)
        save_best(str(tmp_path), {}, step=step, epoch=step // 10)
        best = Path(list_best(str(tmp_path))[-1])
        prune(str(tmp_path), keep_last=1, keep_best=1, written=str(written), keep={best.name})
    assert step_of(str(best)) == 10 and best.exists()


def test_what_a_killed_attempt_began_to_write_is_removed(tmp_path: Path) -> None:
    save(tmp_path, 10)
    (tmp_path / ".0123.part").write_bytes(b"half")
    save_shard(str(tmp_path), "000000020-00000.89abcdef", "rank-1", {})  # without a manifest
    remove_leftovers(str(tmp_path))
    assert len(list(tmp_path.iterdir())) == 4


def test_a_folder_without_checkpoints_has_none(tmp_path: Path) -> None:
    assert latest(str(tmp_path / "absent")) is None and step_of(None) == 0
