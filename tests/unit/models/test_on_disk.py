"""Networks whose weights are built on disk are the ones that are built in memory."""

import gc
import os
from pathlib import Path

import pytest
import torch
from torch import nn

from sparkdl.models import tensors_on_disk
from sparkdl.models.on_disk import LARGE_BYTES


def build() -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(512, 2, 1024, batch_first=True)  # which the encoder copies
    return nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Linear(512, 3))


def files() -> int:
    return sum("sparkdl-weights" in line for line in Path(f"/proc/{os.getpid()}/maps").read_text().splitlines())


def test_the_values_are_the_same_and_only_large_tensors_are_on_disk(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tempfile.tempdir", str(tmp_path))
        with tensors_on_disk():
            network = build()
    for ours, theirs in zip(network.parameters(), build().parameters(), strict=True):
        assert torch.equal(ours, theirs)
    large = {each.untyped_storage().data_ptr() for each in network.parameters() if each.nbytes >= LARGE_BYTES}
    assert files() == len(large)
    assert list(tmp_path.glob("sparkdl-*")) == []  # nobody else sees them
    del network
    gc.collect()
    assert files() == 0


def test_gradients_are_on_disk_too() -> None:
    layer, rows = nn.Linear(600, 600), torch.randn(2, 600)
    layer(rows).sum().backward()
    expected, layer.weight.grad = layer.weight.grad, None
    with tensors_on_disk():
        layer(rows).sum().backward()
        assert files() == 1
    assert layer.weight.grad is not None and torch.equal(layer.weight.grad, expected)
