"""Checkpoints that a rank writes while it trains."""

import errno
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from fsspec.implementations.local import LocalFileSystem
from torch import nn

from sparkdl.cluster import Rank, Timeouts, run_local
from sparkdl.collectives import create_backend
from sparkdl.errors import RankError
from sparkdl.settings import Train
from sparkdl.training.checkpoints.checkpoint import load_manifest
from sparkdl.training.checkpoints.checkpoint_folder import latest, list_manifests, step_of
from sparkdl.training.checkpoints.saver import Saver
from sparkdl.training.checkpoints.state import TrainingState
from sparkdl.training.groups import Groups
from sparkdl.training.replica import Replica
from sparkdl.training.tasks import Classification

BACKEND = create_backend("auto")


class Listening:
    """Rank 0, with what it has sent."""

    rank, stop_requested = 0, False

    def __init__(self) -> None:
        self.sent: list[tuple[str, dict[str, Any]]] = []

    def send(self, kind: str, **content: Any) -> None:
        self.sent.append((kind, content))

    def beat(self, *args: Any) -> None:
        pass


def attempt(folder: str, checkpoint: str | None, steps: list[int], rank: Rank, *, lists: bool = True) -> list[str]:
    """Save after each of these steps, two being kept, where storage ``lists`` what is there; returns what was told."""
    listening = Listening()
    begun = load_manifest(checkpoint) if checkpoint else None
    with BACKEND.connect() as communicator, pytest.MonkeyPatch.context() as patch:
        if not lists:
            patch.setattr(LocalFileSystem, "ls", failing)
        settings = Train(keep_last=2)
        replica = Replica(
            nn.Linear(2, 2), settings, Classification(2), Groups(communicator, communicator), torch.device("cpu")
        )
        with Saver(folder, settings, listening, replica, batch_size=1, begun=begun, begun_at=checkpoint) as saver:  # type: ignore[arg-type]
            for step in steps:
                saver.save(TrainingState(step=step))
            saver.finish()
    return [f"{kind}: {content.get('text', content.get('step'))}" for kind, content in listening.sent]


def failing(*args: object, **options: object) -> None:
    raise OSError(errno.EIO, "Input/output error")


def test_a_checkpoint_is_told_and_training_goes_on_where_old_ones_cannot_be_removed(tmp_path: Path) -> None:
    told = run_local(partial(attempt, str(tmp_path), None, [10], lists=False), 1, backend=BACKEND)[0]
    assert told[0] == "checkpoint: 10"
    assert told[1].startswith("warning: cannot list the checkpoints in") and len(told) == 2
    assert step_of(latest(str(tmp_path))) == 10


def test_the_checkpoint_an_attempt_began_from_stays_until_others_take_its_place(tmp_path: Path) -> None:
    run_local(partial(attempt, str(tmp_path), None, [200, 300]), 1, backend=BACKEND)
    damaged = Path(list_manifests(str(tmp_path))[0])
    damaged.write_bytes(b"damaged")
    begun = latest(str(tmp_path))
    run_local(partial(attempt, str(tmp_path), begun, [350]), 1, backend=BACKEND)
    assert Path(str(begun)).exists()
    run_local(partial(attempt, str(tmp_path), begun, [350, 400]), 1, backend=BACKEND)
    assert [step_of(path) for path in list_manifests(str(tmp_path))] == [400, 350]


def save_weights_that_are_not_finite(folder: str, rank: Rank) -> None:
    with BACKEND.connect() as communicator:
        replica = Replica(
            nn.Linear(2, 2), Train(), Classification(2), Groups(communicator, communicator), torch.device("cpu")
        )
        with Saver(folder, Train(), rank, replica, batch_size=1) as saver:
            saver.save(TrainingState(step=1))
            replica.model.weight.data[0, 0] = torch.nan  # type: ignore[operator, index, union-attr]
            saver.save(TrainingState(step=2))
            saver.finish()


def test_weights_that_are_not_finite_end_the_run_and_the_good_checkpoint_stays(tmp_path: Path) -> None:
    with pytest.raises(RankError, match="weights are not finite after step 2"):
        run_local(partial(save_weights_that_are_not_finite, str(tmp_path)), 1, backend=BACKEND)
    assert step_of(latest(str(tmp_path))) == 1


def save_slowly(folder: str, steps: list[int], best: bool, rank: Rank) -> float:
    """Save after each of these steps, where each file takes a second, and wait; returns the seconds."""

    def slow(*args: Any, **options: Any) -> None:
        time.sleep(1)
        replace(*args, **options)

    with BACKEND.connect() as communicator, pytest.MonkeyPatch.context() as patch:
        replace = Path.replace
        patch.setattr(Path, "replace", slow)
        replica = Replica(
            nn.Linear(2, 2), Train(), Classification(2), Groups(communicator, communicator), torch.device("cpu")
        )
        with Saver(folder, Train(), rank, replica, batch_size=1) as saver:
            rank.beat(1)
            began = time.monotonic()
            for step in steps:
                saver.save(TrainingState(step=step), consensus=dict(replica.model.state_dict()), best=best)
            saver.finish()
            return time.monotonic() - began


def test_a_rank_that_waits_for_a_slow_checkpoint_is_not_stuck(tmp_path: Path) -> None:
    slow = partial(save_slowly, str(tmp_path), [1], True)
    run_local(slow, 1, backend=BACKEND, timeouts=Timeouts(stall_timeout=2))
    assert step_of(latest(str(tmp_path))) == 1


def test_the_files_of_a_checkpoint_are_written_together_and_while_the_manifest_before_is(tmp_path: Path) -> None:
    (seconds,) = run_local(partial(save_slowly, str(tmp_path), [1, 2, 3], False), 1, backend=BACKEND)
    assert 4 <= seconds < 7, "three times the shards and one manifest after them; one after the other, nine files"
    assert [step_of(path) for path in list_manifests(str(tmp_path))] == [3, 2]
