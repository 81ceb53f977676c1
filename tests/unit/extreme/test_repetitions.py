"""Finished repetitions on disk."""

import uuid
from pathlib import Path

import pytest
import torch

from sparkdl.data import SparseBatch
from sparkdl.errors import ModelError
from sparkdl.extreme.repetitions import (
    BUCKETS,
    Finished,
    fetch_repetition,
    finished,
    first_layer,
    open_weights,
    save_repetition,
    weights_name,
)

TABLE = torch.tensor([[0.0, 1.0, -2.0], [0.0, 0.0, 0.0], [3e-6, 1e-6, 0.0], [1e-9, 0.0, 0.0], [500.0, 1.0, 3.0]])
STATE = {"table": TABLE, "bias.0": torch.ones(3)}


def save(folder: Path | str, repetition: int = 3) -> Finished:
    return save_repetition(str(folder), repetition, STATE, made_of="this", losses=[2.0, 1.0], rate=10.0, seconds=1.5)


def batch(indices: torch.Tensor, values: torch.Tensor, offsets: torch.Tensor) -> SparseBatch:
    none = torch.empty(0, dtype=torch.int64)
    return SparseBatch(indices, values, offsets, none, torch.zeros_like(offsets))


def test_a_repetition_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    record = save(tmp_path)
    assert finished(str(tmp_path), 3, made_of="this") == record
    assert Finished.from_json(record.to_json()) == record
    loaded = open_weights(tmp_path / weights_name(3), sha256=record.sha256)
    assert torch.equal(loaded["bias.0"], torch.ones(3).half())
    assert len(list(tmp_path.iterdir())) == 2


def test_a_table_of_buckets_comes_back_as_it_was(tmp_path: Path) -> None:
    buckets = torch.tensor([70_001, 0, 3], dtype=torch.int32)  # more than a float of 16 bits can hold
    save_repetition(str(tmp_path), 1, STATE | {BUCKETS: buckets}, made_of="this", losses=[1.0], rate=1.0, seconds=1.0)
    record = finished(str(tmp_path), 1, made_of="this")
    assert record is not None
    assert torch.equal(open_weights(tmp_path / weights_name(1), sha256=record.sha256)[BUCKETS], buckets)


def test_a_weight_of_the_first_layer_takes_a_byte_and_keeps_its_size_among_those_of_its_feature(tmp_path: Path) -> None:
    record = save(tmp_path)
    loaded = open_weights(tmp_path / weights_name(3), sha256=record.sha256)
    assert loaded["table"].dtype == torch.uint8
    features = torch.tensor([4, 0, 1, 2, 3])
    found = first_layer(loaded, batch(features, torch.ones(5), torch.arange(6)))
    expected = TABLE[features]
    assert ((found - expected).abs() <= expected.abs().amax(1, keepdim=True) / 250 + 1e-9).all()


def test_the_first_layer_adds_up_the_weights_of_a_rows_features(tmp_path: Path) -> None:
    record = save(tmp_path)
    loaded = open_weights(tmp_path / weights_name(3), sha256=record.sha256)
    found = first_layer(
        loaded, batch(torch.tensor([0, 4, 0]), torch.tensor([2.0, 0.5, 1.0]), torch.tensor([0, 2, 2, 3]))
    )
    expected = torch.stack([2 * TABLE[0] + TABLE[4] / 2, torch.zeros(3), TABLE[0]])
    half_a_level = torch.tensor(
        [[2 * 3 / 510 + 500 / 510 / 2], [0.0], [3 / 510]]
    )  # of a feature's 255, which end at 500
    assert ((found - expected).abs() <= half_a_level * 1.1 + 1e-6).all()


def test_a_repetition_of_other_settings_is_not_finished(tmp_path: Path) -> None:
    save(tmp_path)
    assert finished(str(tmp_path), 3, made_of="that") is None
    assert finished(str(tmp_path), 4, made_of="this") is None


@pytest.mark.parametrize("damage", ["truncated", "altered", "missing", "record"])
def test_damage_is_found(tmp_path: Path, damage: str) -> None:
    sha256 = save(tmp_path).sha256
    path = tmp_path / "repetition-0003.safetensors"
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "record":
        (tmp_path / "repetition-0003.json").write_text("{}")
    else:
        path.write_bytes(content[:-1] if damage == "truncated" else content[:-1] + bytes([content[-1] ^ 1]))
    assert finished(str(tmp_path), 3, made_of="this") is None
    if damage != "record":
        with pytest.raises(ModelError, match=r"repetition-0003\.safetensors"):
            open_weights(path, sha256=sha256)


def test_a_second_copy_of_a_task_changes_nothing(tmp_path: Path) -> None:
    first = save(tmp_path)
    assert save(tmp_path) == first
    assert finished(str(tmp_path), 3, made_of="this") == first


def test_repetitions_may_lie_where_only_a_uri_leads(tmp_path: Path) -> None:
    folder = f"memory://{uuid.uuid4().hex}/run"
    record = save(folder)
    assert finished(folder, 3, made_of="this") == record
    assert finished(folder, 4, made_of="this") is None
    fetch_repetition(folder, 3, tmp_path)
    assert open_weights(tmp_path / weights_name(3), sha256=record.sha256).keys() >= STATE.keys()
