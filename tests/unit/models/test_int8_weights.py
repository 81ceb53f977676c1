from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from sparkdl.errors import ModelError
from sparkdl.models import export_network, load_network, refer, write_in_int8, write_reference
from sparkdl.models.networks import cnn


class Words(nn.Module):
    """A table that is read twice, and inputs by name."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.last = nn.Embedding(100, 32), nn.Linear(32, 4)

    def forward(self, input_ids: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.words(input_ids).mean(1) + self.words(others).mean(1))
        return found


def test_weights_take_a_quarter_of_the_bytes_and_of_the_memory_and_are_computed_with_as_float32(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = cnn(input_shape=(1, 28, 28), num_classes=10).eval()
    rows = torch.rand(5, 1, 28, 28)
    source = export_network(network, tmp_path / "network", rows)
    small = write_in_int8(source, tmp_path / "int8")
    assert small.stat().st_size < 0.28 * source.stat().st_size
    opened = load_network(small)
    for _ in range(2):  # what was float32 for one batch is int8 again
        found = opened(rows)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, network(rows), rtol=0.05, atol=0.01)
    assert not torch.equal(found, network(rows))
    assert sum(tensor.nbytes for tensor in opened.tensors) < 0.28 * source.stat().st_size  # type: ignore[operator, union-attr]


def test_a_table_that_two_operations_read_is_there_for_both(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = Words()
    rows = {name: torch.randint(100, (3, 6)) for name in ("input_ids", "others")}
    source = export_network(network, tmp_path / "network", rows)
    found = load_network(write_in_int8(source, tmp_path / "int8"))(**rows)
    torch.testing.assert_close(found["logits"], network(**rows), rtol=0.05, atol=0.02)


def test_a_file_without_the_scales_of_its_weights_is_damaged(tmp_path: Path) -> None:
    source = export_network(nn.Linear(64, 64), tmp_path / "network", torch.zeros(2, 64))
    path = write_in_int8(source, tmp_path / "int8")
    with safe_open(path, framework="pt") as file:
        header = file.metadata()
    save_file({name: each for name, each in load_file(path).items() if "scale" not in name}, path, header)
    with pytest.raises(ModelError, match=r"lacks the weights .*scale_of_rows"):
        load_network(path)


def test_a_network_without_matrices_and_one_that_its_code_builds_have_no_such_form(tmp_path: Path) -> None:
    source = export_network(nn.Linear(4, 2), tmp_path / "network", torch.zeros(2, 4))
    with pytest.raises(ModelError, match="has no matrices of float32 weights that int8 could hold"):
        write_in_int8(source, tmp_path / "int8")
    arguments = {"input_shape": [4], "num_classes": 2, "options": {}}
    path = write_reference(nn.Linear(4, 2), tmp_path / "own", refer("sparkdl.models.networks:mlp", arguments))
    with pytest.raises(ModelError, match=r"is not exported: 'sparkdl\.models\.networks:mlp' builds it"):
        write_in_int8(path, tmp_path / "int8")
