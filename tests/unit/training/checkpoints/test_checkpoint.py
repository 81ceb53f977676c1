"""The files of a checkpoint."""

import os
import pickle
from pathlib import Path

import pytest
import torch

from sparkdl.errors import CheckpointError
from sparkdl.training.checkpoints.checkpoint import load_weights, save_shard


class Malicious:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch executed",)


def test_a_strangers_weights_run_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for content in (pickle.dumps(Malicious()), b"no weights"):
        (tmp_path / "stranger.pt").write_bytes(content)
        with pytest.raises(CheckpointError, match=r"stranger\.pt does not hold tensors and plain values alone"):
            load_weights(str(tmp_path / "stranger.pt"))
    torch.save({"model": Malicious()}, tmp_path / "stranger.pt")
    with pytest.raises(CheckpointError):
        load_weights(str(tmp_path / "stranger.pt"))
    assert not (tmp_path / "executed").exists()


def test_a_place_that_cannot_be_written_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError, match=r"cannot write the checkpoint .*file/run.*free space"):
        save_shard(str(tmp_path / "file" / "run"), "000000010-00000.01234567", "shared", {"model": {}})
